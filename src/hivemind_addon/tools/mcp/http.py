"""The server over streamable HTTP: on this machine only, for clients that say the token, and for no web page.

The token is made here, or kept in a file that only the owner can read.
"""

import hmac
import logging
import os
import secrets
import socket
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import uvicorn
from mcp.server.fastmcp.server import StreamableHTTPASGIApp
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hivemind_addon.tools.mcp.server import McpServer

HOST = "127.0.0.1"
PATH = "/mcp"
MAX_BODY_BYTES = 1024 * 1024
MAX_SESSIONS = 100
IDLE_S = 30 * 60.0
"""After so long a silence a client counts as gone, and its leases are released."""
_CUT = "returned without completing response"
_GRACE_S = 1
"""Calls that run when the server ends get so long."""
_LEAST_TOKEN_CHARS = 16
_MOST_TOKEN_BYTES = 4096


class BadToken(Exception):
    """The file cannot be used; a line with the file's name and the cure."""


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(32)


def kept_token(file: Path) -> str:
    """The token in a file, which is made, 0600, if there is none. Raises BadToken, OSError."""
    if not file.exists():
        token = new_token()
        with NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}-") as made:  # 0600 from its first byte
            made.write(f"{token}\n")
            made.flush()
            with suppress(FileExistsError):  # whoever starts at the same moment finds a whole one
                os.link(made.name, file)
    return _read_token(file)


def is_token(said: str, token: str) -> bool:
    """Whether an `Authorization` header says the token; the time does not depend on how near a wrong token is."""
    kind, _, word = said.strip().partition(" ")
    same = hmac.compare_digest(word.strip().encode(errors="replace"), token.encode())
    return same and kind.lower() == "bearer"


def _read_token(file: Path) -> str:
    with file.open("rb") as source:
        found = os.fstat(source.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise BadToken(f"{file} is no file; name another one")
        if found.st_uid != os.getuid():
            raise BadToken(f"{file} belongs to somebody else; name another file")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise BadToken(f"{file} can be read by others; chmod 600 {file}")
        text = source.read(_MOST_TOKEN_BYTES).decode("ascii", "replace").strip()
    if len(text) < _LEAST_TOKEN_CHARS or not text.isprintable() or " " in text:
        raise BadToken(
            f"{file} has no token of at least {_LEAST_TOKEN_CHARS} letters and digits; remove it for a new one"
        )
    return text


def make_app(server: McpServer, *, token: str, port: int) -> ASGIApp:
    """The application for uvicorn: lets through clients that say the token, to a name of this machine, no web page."""
    names = [f"{name}:{port}" for name in (HOST, "localhost")]
    sessions = StreamableHTTPSessionManager(
        server,
        # A page of a foreign site whose name leads here would say that name (DNS rebinding), or its own as Origin.
        security_settings=TransportSecuritySettings(
            allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
        ),
        max_request_body_size=MAX_BODY_BYTES,
        max_sessions=MAX_SESSIONS,
        session_idle_timeout=IDLE_S,
    )
    app = Starlette(routes=[Route(PATH, endpoint=StreamableHTTPASGIApp(sessions))], lifespan=lambda _: sessions.run())
    text = "say the token that `hivemind mcp --http` has printed: `Authorization: Bearer …`"
    refusal = JSONResponse({"error": text}, status_code=401, headers={"www-authenticate": "Bearer"})

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        knows = scope["type"] != "http" or is_token(Headers(scope=scope).get("authorization", ""), token)
        await (app if knows else refusal)(scope, receive, send)

    return guarded


def listener(port: int) -> socket.socket:
    """A socket on loopback; port 0: any free port. Raises OSError."""
    return socket.create_server((HOST, port))


async def serve_http(server: McpServer, listening: socket.socket, *, token: str) -> None:
    """Serve clients until SIGINT or SIGTERM comes."""
    port: int = listening.getsockname()[1]
    app = make_app(server, token=token, port=port)
    settings = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE_S, lifespan="on"
    )
    # A client listens for news all the time: that its stream is cut at the end is no error.
    logging.getLogger("uvicorn.error").addFilter(lambda record: _CUT not in record.getMessage())
    await uvicorn.Server(settings).serve(sockets=[listening])
