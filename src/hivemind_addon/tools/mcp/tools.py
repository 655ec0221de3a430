"""Every tool, in the order in which they are shown."""

from typing import Any

from hivemind_addon.plugins.contexts import recall_tool
from hivemind_addon.plugins.fleets import lease_tools, task_tools
from hivemind_addon.tools.mcp import own, past, steering
from hivemind_addon.tools.mcp.tool import McpTool

TOOLS: tuple[McpTool[Any, Any], ...] = (
    *own.TOOLS,
    *past.TOOLS,
    *recall_tool.TOOLS,
    *lease_tools.TOOLS,
    *task_tools.TOOLS,
    *steering.TOOLS,
)
