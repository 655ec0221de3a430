"""Every tool, in the order in which they are shown."""

from typing import Any

from hivemind_addon.tools.mcp import locks, own, past, steering, work
from hivemind_addon.tools.mcp.tool import McpTool

TOOLS: tuple[McpTool[Any, Any], ...] = (
    *own.TOOLS,
    *past.TOOLS,
    *locks.TOOLS,
    *work.TOOLS,
    *steering.TOOLS,
)
