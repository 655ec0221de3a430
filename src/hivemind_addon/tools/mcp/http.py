"""The server over streamable HTTP: on this machine only, for clients that say the token, and for no web page.

The token is made here, or kept in a file that only its owner reads.
"""

import hmac
import logging
import os
import secrets
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from hivemind_addon.tools.mcp.server import Client

HOST = "127.0.0.1"
PATH = "/mcp"
MAX_BODY_BYTES = 1024 * 1024
MAX_SESSIONS = 100
IDLE_S = 30 * 60.0
"""A client that says nothing for so long is gone, and its leases with it."""
_CUT = "returned without completing response"
_GRACE_S = 1
"""What runs when the server is ended gets so long."""
_TOKEN_BYTES = 32
_LEAST_TOKEN_CHARS = 16
_MOST_TOKEN_BYTES = 4096


class BadToken(Exception):
    """The file cannot be used; one line that names it and the cure."""


def new_token() -> str:
    """One that nobody guesses."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def kept_token(file: Path) -> str:
    """The token in a file; one is made where there is none, 0600. Raises BadToken, OSError."""
    if not file.exists():
        token = new_token()
        with NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}-") as made:  # 0600 from its first byte
            made.write(f"{token}\n")
            made.flush()
            with suppress(FileExistsError):  # whoever starts at the same moment finds a whole one
                os.link(made.name, file)
    return _read_token(file)


def is_token(said: str, token: str) -> bool:
    """Whether an `Authorization` header says it; takes as long for a near miss as for a far one."""
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


class AccessGuard:
    """Lets through who says the token, to a name of this machine, from no web page."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        names = (HOST, "localhost")
        # A page of a foreign site whose name leads here would say that name (DNS rebinding), or its own as Origin.
        self._security = TransportSecurityMiddleware(
            TransportSecuritySettings(
                allowed_hosts=[f"{name}:{port}" for name in names],
                allowed_origins=[f"http://{name}:{port}" for name in names],
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = await self._security.validate_request(request, is_post=request.method == "POST")
        if refusal is None and not is_token(request.headers.get("authorization", ""), self._token):
            refusal = _unauthorized()
        await (refusal or self._app)(scope, receive, send)


def _unauthorized() -> Response:
    text = "say the token that `hivemind mcp --http` has printed: `Authorization: Bearer …`"
    return JSONResponse({"error": text}, status_code=401, headers={"www-authenticate": "Bearer"})


class _Endpoint:
    """The protocol's one address. A class: Starlette takes a function for one that gets a request."""

    def __init__(self, sessions: StreamableHTTPSessionManager) -> None:
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        await self._sessions.handle_request(scope, receive, send)


def make_app(server: "Server[Client, Any]", *, token: str, port: int) -> ASGIApp:
    """What uvicorn serves."""
    sessions = StreamableHTTPSessionManager(
        server,
        max_request_body_size=MAX_BODY_BYTES,
        max_sessions=MAX_SESSIONS,
        session_idle_timeout=IDLE_S,
    )

    @asynccontextmanager
    async def living(_: Starlette) -> AsyncIterator[None]:
        async with sessions.run():
            yield

    app = Starlette(routes=[Route(PATH, endpoint=_Endpoint(sessions))], lifespan=living)
    return AccessGuard(app, token=token, port=port)


def listener(port: int) -> socket.socket:
    """Bound on loopback; port 0: any that is free. Raises OSError."""
    return socket.create_server((HOST, port))


async def serve_http(server: "Server[Client, Any]", listening: socket.socket, *, token: str) -> None:
    """Serve clients until SIGINT or SIGTERM comes."""
    port: int = listening.getsockname()[1]
    app = make_app(server, token=token, port=port)
    settings = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE_S, lifespan="on"
    )
    # A client listens for news all the time: that its stream is cut at the end is no error.
    logging.getLogger("uvicorn.error").addFilter(lambda record: _CUT not in record.getMessage())
    await uvicorn.Server(settings).serve(sockets=[listening])
