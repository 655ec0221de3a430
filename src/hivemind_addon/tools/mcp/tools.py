"""Every tool, in the order in which they are shown."""

from typing import Any

from hivemind_addon.tools.mcp import hm, locks, own, past, recall, steering, work
from hivemind_addon.tools.mcp.tool import McpTool

TOOLS: tuple[McpTool[Any, Any], ...] = (
    *own.TOOLS,
    *past.TOOLS,
    *recall.TOOLS,
    *locks.TOOLS,
    *work.TOOLS,
    *steering.TOOLS,
)
HM_TOOLS: tuple[McpTool[Any, Any], ...] = hm.TOOLS
"""The same under the names of hivemind-scheduler."""
