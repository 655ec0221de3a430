"""Every tool, in the order in which they are shown."""

from hivemind_addon.plugins.contexts import recall_tool
from hivemind_addon.plugins.fleets import lease_tools, task_tools
from hivemind_addon.tools.mcp import own, past, steering
from hivemind_addon.tools.mcp.tool import McpTool

TOOLS = tuple(
    one
    for room in (own, past, recall_tool, lease_tools, task_tools, steering)
    for one in vars(room).values()
    if isinstance(one, McpTool)
)
