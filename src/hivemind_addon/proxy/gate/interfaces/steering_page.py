"""Steering by the page: commands from a browser on this machine, after `hivemind open` gave the browser a key.

    POST /page/session   {"key": "…"}                  → {"token": "…", "user": "ann"}; a key works once
    POST /page/command   {"id": "…", "command": {…}}   → a `CommandReply`; 202: in progress, send the same again
    POST /page/end       {}                            → the token stops working

The page may send the control socket's commands to the scheduler (`values/command.py`), not commands on options or
recordings. The proxy carries out each command once, however often the page repeats the `id`.

The token is no cookie: a browser sends cookies to every port of an address, so that any server on this machine that a
person visits would get the token. The token is in a header instead. No form and no image sends that header, and a
script of another origin needs a permission that the proxy never gives. Besides the token, the browser's own headers
have to be right, and the request has to come straight from this machine. No token makes a request steer that came
through the proxy (as agents' requests do), from an allowed network elsewhere, or under another name.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING

import msgspec
from mitmproxy import http

from hivemind_addon.formats.base import json_values
from hivemind_addon.kernel.values.command import Order
from hivemind_addon.proxy.api.command import BadCommand, Command, CommandReply, read_command
from hivemind_addon.proxy.gate.addresses import is_loopback
from hivemind_addon.proxy.host.port import MAX_PAGE_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mitmproxy.connection import Client

    from hivemind_addon.proxy.host.port import TakesBody
    from hivemind_addon.proxy.page.sessions import PageSessions

logger = logging.getLogger("hivemind")

PATHS = ("/page/session", "/page/command", "/page/end")
HEADER = "x-hivemind-token"
_JSON = "application/json"
_MOST_REPLIES = 200
_MOST_COMING = 20
_OPEN_IT = "this page only shows: `hivemind open` opens one that steers"
_STRAIGHT = "only a browser on the proxy's own machine steers, straight at 127.0.0.1: `hivemind open`"


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class _Ordered(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    command: msgspec.Raw


class PageSteering:
    """Lets pages that have a token command the scheduler. On the event loop."""

    def __init__(
        self,
        *,
        sessions: PageSessions,
        command: Callable[[Command], CommandReply | Awaitable[CommandReply]],
        now: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        """`command` carries out a command, as for the control socket; a call of `changed` follows."""
        self._changed = changed
        self._sessions = sessions
        self._command = command
        self._now = now
        self._replies: dict[tuple[bytes, str], CommandReply | asyncio.Task[CommandReply]] = {}

    def user_of(self, request: http.Request, client: Client, *, is_straight: bool) -> str | None:
        """The user of the page; None: the request has no valid token, or comes from a wrong place."""
        token = request.headers.get(HEADER, "")
        if not token or not is_straight or not is_loopback(client.peername[0]) or not _is_same_origin(request):
            return None
        return self._sessions.user_of(token, self._now())

    def answer(self, request: http.Request, client: Client, *, is_straight: bool) -> http.Response | TakesBody:
        """Answer a request for a path in PATHS. `is_straight`: sent to the proxy itself, under the proxy's own name."""
        if request.method != "POST":
            return _say(405, "this is only for POST", {"Allow": "POST"})
        if not is_straight or not is_loopback(client.peername[0]):
            return _say(403, _STRAIGHT)
        if not _is_same_origin(request) or request.headers.get("origin", "") != f"http://{request.host_header}":
            return _say(403, "not for other sites")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            return _say(415, "this takes application/json only")
        match request.path:
            case "/page/session":
                return self._open
            case "/page/command" | "/page/end" as path:
                token = request.headers.get(HEADER, "")
                user = self._sessions.user_of(token, self._now()) if token else None
                if user is None:
                    return _say(401, _OPEN_IT)
                if path == "/page/end":
                    self._sessions.close(token)
                    return _say(200, "it steers no more")
                return lambda body: self._carry_out(token, user, body)
        return _say(404, "there is no such thing here")

    def _open(self, body: bytes) -> http.Response:
        try:
            key = json_values.decode(body, _Key).key
        except (msgspec.MsgspecError, UnicodeDecodeError):
            key = ""
        opened = self._sessions.open(key, self._now())
        if opened is None:
            return _say(401, "this key was used or is too old: `hivemind open` makes another")
        token, user = opened
        return _make(200, {"token": token, "user": user})

    def _carry_out(self, token: str, user: str, body: bytes) -> http.Response:
        if len(body) > MAX_PAGE_BODY_BYTES:
            return _say(413, "a command is shorter")
        try:
            asked = json_values.decode(body, _Ordered)
            command = read_command(json_values.decode(asked.command))
        except BadCommand as error:
            return _say(400, str(error))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _say(400, f"not understood: {error}")
        if not isinstance(command, Order):
            return _say(403, "the page changes what is scheduled, and nothing else of the proxy")
        place = hashlib.sha256(token.encode()).digest(), asked.id[:100]
        if place not in self._replies:
            coming = sum(isinstance(one, asyncio.Task) and not one.done() for one in self._replies.values())
            if coming >= _MOST_COMING:
                return _say(503, "too many commands are under way")
            self._replies[place] = self._begin(_signed(command, user))
            if len(self._replies) > _MOST_REPLIES:
                del self._replies[next(iter(self._replies))]
        return self._told(self._replies[place])

    def _begin(self, command: Order) -> CommandReply | asyncio.Task[CommandReply]:
        reply = self._command(command)
        return reply if isinstance(reply, CommandReply) else asyncio.ensure_future(_awaited(reply))

    def _told(self, reply: CommandReply | asyncio.Task[CommandReply]) -> http.Response:
        if isinstance(reply, asyncio.Task):
            if not reply.done():
                return _say(202, "it is being done")
            reply = reply.result()
        self._changed()
        return _make(200, reply)


async def _awaited(reply: Awaitable[CommandReply]) -> CommandReply:
    try:
        return await reply
    except Exception as error:  # the guard at the edge: the page must get an answer
        logger.exception("hivemind: a command of the page failed")
        return CommandReply(done=False, text=f"hivemind_addon failed: {error!r}")


def _signed(command: Order, user: str) -> Order:
    """The command in this person's name, whatever name the page gave."""
    person = f"{user or 'a person'}, on the page"
    if "by" in command.__struct_fields__:
        return msgspec.structs.replace(command, person=person, by="")
    return msgspec.structs.replace(command, person=person)


def _is_same_origin(request: http.Request) -> bool:
    """Whether our own page sent the request; a browser without the header is too old to say so, and passes."""
    return bool(request.headers.get("sec-fetch-site", "same-origin") == "same-origin")


def _say(status: int, text: str, headers: dict[str, str] | None = None) -> http.Response:
    return _make(status, CommandReply(done=status == 200, text=text), headers)


def _make(status: int, value: object, headers: dict[str, str] | None = None) -> http.Response:
    return http.Response.make(status, msgspec.json.encode(value), {"Content-Type": _JSON} | (headers or {}))
