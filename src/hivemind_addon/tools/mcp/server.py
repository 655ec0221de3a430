"""The MCP server: the tools that a client sees, and the results of calls. Also over standard input and output."""

import logging
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from io import TextIOWrapper
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from hivemind_addon import __version__
from hivemind_addon.plugins.contexts.store import UnknownContext
from hivemind_addon.plugins.fleets.leases.model import LeaseError
from hivemind_addon.plugins.fleets.tasks.model import NotTaken
from hivemind_addon.proxy.api.control import CommandUnanswered, UnreadableReport
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.tools.history.reader import NoJournal
from hivemind_addon.tools.mcp.session import ServerScope, Session, ToolFailed
from hivemind_addon.tools.mcp.tool import Call, McpTool, ToolCancelled

logger = logging.getLogger("hivemind")

NAME = "hivemind"
INSTRUCTIONS = """\
A scheduler sits between you (and other agents on this machine) and the model providers: it holds, orders and retries \
requests so that shared rate limits are used and nobody gets an error that waiting can cure. These tools tell how you \
stand in it, let you go behind others, and let agents coordinate with leases. A slow call usually means a queue: ask \
`status` or `wait_estimate` instead of starting the work again."""
MAX_CALLS = 32
"""Calls of a client at once, each in a separate thread; more wait."""
EXPECTED: tuple[type[Exception], ...] = (
    ToolFailed,
    CommandUnanswered,
    UnreadableReport,
    FolderNotPrivate,
    LeaseError,
    NotTaken,
    UnknownContext,
    NoJournal,
)
"""Exceptions that a call may raise: the text is a line for the model."""

McpServer = Server[tuple[Session, anyio.CapacityLimiter], Any]
"""Each client has a separate limiter: a client whose calls all wait for leases delays no other client."""


def make_server(tools: Iterable[McpTool], scope: ServerScope, session: Callable[[], Session]) -> McpServer:
    """A server of these tools; each client gets a session, which is closed when the client leaves."""
    known = {tool.shown.name: tool for tool in tools}

    @asynccontextmanager
    async def living(_: McpServer) -> AsyncIterator[tuple[Session, anyio.CapacityLimiter]]:
        made = session()
        try:
            yield made, anyio.CapacityLimiter(MAX_CALLS)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(made.close)

    server: McpServer = Server(NAME, version=__version__, instructions=INSTRUCTIONS, lifespan=living)

    async def listed(_: types.ListToolsRequest) -> types.ServerResult:
        shown = [tool.shown for tool in known.values() if scope.has(tool.needs)]
        return types.ServerResult(types.ListToolsResult(tools=shown))

    async def called(request: types.CallToolRequest) -> types.ServerResult:
        context = server.request_context
        token = context.meta.progressToken if context.meta else None
        tell = None if token is None else partial(_tell, context.session, token, context.request_id)
        made, limiter = context.lifespan_context
        call = Call(made, tell)
        asked = request.params
        try:
            tool = _allowed(known, scope, asked.name)
            given = await anyio.to_thread.run_sync(
                tool.called, call, asked.arguments or {}, abandon_on_cancel=True, limiter=limiter
            )
        except EXPECTED as error:
            return _result(str(error))
        except (OSError, sqlite3.Error) as error:
            return _result(failing(error))
        except ToolCancelled:
            return _result("cancelled")
        except Exception as error:  # the guard at the edge: the server stays up
            logger.exception("hivemind: %s failed", asked.name)
            return _result(f"hivemind failed: {failing(error)}")
        finally:
            call.stop()
        return _result(msgspec.json.encode(given).decode(), given)

    # Not the SDK's decorators: these check arguments a second time, and tell a value that is too long in full.
    server.request_handlers[types.ListToolsRequest] = listed
    server.request_handlers[types.CallToolRequest] = called
    return server


def _allowed(known: Mapping[str, McpTool], scope: ServerScope, name: str) -> McpTool:
    """Raises ToolFailed."""
    tool = known.get(name)
    if tool is None:
        there = ", ".join(name for name, one in known.items() if scope.has(one.needs))
        raise ToolFailed(f"there is no tool {name[:100]!r}; there are {there}")
    if not scope.has(tool.needs):
        word = tool.needs[0].value
        raise ToolFailed(
            f"{name} is not allowed here: the person who starts this server has to add `--allow {word}` to "
            "`hivemind mcp`"
        )
    return tool


def _tell(session: Any, token: str | int, request_id: str | int, done: float, total: float, text: str) -> None:
    """Progress, from a call's thread."""
    try:
        anyio.from_thread.run(session.send_progress_notification, token, done, total, text, str(request_id))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, RuntimeError):
        logger.debug("hivemind: nobody hears of progress any more")


def _result(text: str, given: dict[str, Any] | None = None) -> types.ServerResult:
    """The result of a call; without a value an error."""
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
    return types.ServerResult(types.CallToolResult(content=content, structuredContent=given, isError=given is None))


async def serve_stdio(server: McpServer) -> None:
    """Serve the client at standard input and output until the client leaves.

    Both belong to the client from now on: other output goes to standard error, and a child process reads nothing.
    """
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.flush()
    os.dup2(2, 1)
    reader = TextIOWrapper(os.fdopen(source, "rb"), encoding="utf-8", errors="replace")
    writer = TextIOWrapper(os.fdopen(target, "wb"), encoding="utf-8")
    async with stdio_server(anyio.wrap_file(reader), anyio.wrap_file(writer)) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
