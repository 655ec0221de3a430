"""Calls for help by Apprise: desktop, Slack, ntfy, mail and all other services of Apprise. Needs the extra `alerts`.

Any part of an address may be secret. So addresses come from the environment or from a file that only the owner can
read, and messages name them by number and service. Errors of Apprise are shown without any part of the address.
"""

import asyncio
import logging
import re
import stat
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.record.notice import Cause, Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from apprise import NotifyBase, NotifyType

MOST_ADDRESSES = 20
_MOST_LINES = 10
"""Most lines of a message."""
_FILE_BYTES = 64 * 1024
TIMEOUT_S = 30.0
_WORD = re.compile(r"[\w.~-]+")
_SEPARATOR = re.compile(r"[/?&=:@]+")
_LONG = 3
"""A shorter part of an address is no secret."""


class BadAddresses(ValueError):
    """The addresses cannot be used. Gives the problem and the cure, without any address."""


def read_addresses(file: Path) -> list[str]:
    """The lines of a file that only the owner may read, without empty lines and comments (`#`). Raises BadAddresses."""
    try:
        found = file.stat()
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise BadAddresses(f"{file} can be read by others, and holds secrets; chmod 600 {file}")
        if found.st_size > _FILE_BYTES:
            raise BadAddresses(f"{file} is too long for a file of addresses; name one with a line for each")
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadAddresses(f"{file} cannot be read ({type(error).__name__}); name a text file of yours") from error
    return [line for line in lines if line and not line.startswith("#")]


class Address:
    """An address. A thread that is never joined sends, so a hanging service does not keep the proxy from ending."""

    def __init__(self, number: int, url: str) -> None:
        """Raises BadAddresses."""
        apprise = _apprise()
        _reasons.taken()
        plugin = apprise.Apprise.instantiate(url)
        if plugin is None:
            scheme, separator, _ = url.partition("://")
            what = f"{scheme}://…" if separator and scheme.isalnum() else "it"
            why = _reasons.taken()
            raise BadAddresses(
                f"address {number}: Apprise cannot use {what}{f' ({_without(url, why)})' if why else ''}; "
                "https://appriseit.com/services/ has the form of each, and what it needs"
            )
        self.name = f"address {number} ({plugin.service_name})"
        self._plugin: NotifyBase = plugin
        self._url = url
        self._is_sending = False

    def __repr__(self) -> str:
        return f"<Address {self.name}>"

    def send(self, title: str, body: str, kind: "NotifyType") -> "asyncio.Future[str]":
        """Begin to send; the future gives the failure, or an empty text."""
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[str] = loop.create_future()
        if self._is_sending:
            sent.set_result("it is still at the message before")
            return sent
        self._is_sending = True
        done = partial(_set, loop, sent)
        threading.Thread(target=self._send, args=(title, body, kind, done), name="hivemind-alert", daemon=True).start()
        return sent

    def _send(self, title: str, body: str, kind: "NotifyType", done: "Callable[[str], None]") -> None:
        _reasons.taken()
        try:
            is_sent = self._plugin.notify(body=body, title=title, notify_type=kind)
            why = "" if is_sent else _without(self._url, _reasons.taken()) or "not delivered"
        except Exception as error:  # noqa: BLE001 - a library of a hundred services
            why = _without(self._url, failing(error))
        self._is_sending = False
        done(why)


def _set(loop: asyncio.AbstractEventLoop, sent: "asyncio.Future[str]", why: str) -> None:
    def set_result() -> None:
        if not sent.done():
            sent.set_result(why)

    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(set_result)


class Alerts:
    """Calls for help: sends each address a single message with all notices, and reports each failure once."""

    at_once = 1
    takes = 100
    gather_s = 3.0
    """Time that the first notice waits for others: a problem of a pool often affects all pools."""
    rest_s = 60.0
    """Time between two messages: a storm gives a message at the start, then at most one a minute."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Raises BadAddresses."""
        if not urls:
            raise BadAddresses("there is no address; https://appriseit.com/services/ has the form of each")
        if len(urls) > MOST_ADDRESSES:
            raise BadAddresses(f"{len(urls)} addresses are too many; name at most {MOST_ADDRESSES}")
        self._urls = tuple(urls)
        self.addresses = [Address(number, url) for number, url in enumerate(urls, start=1)]
        self._failing: set[str] = set()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alerts) and self._urls == other._urls

    def __hash__(self) -> int:
        return hash(self._urls)

    def __repr__(self) -> str:
        return f"<Alerts to {', '.join(address.name for address in self.addresses)}>"

    async def call(self, notices: Sequence[Notice]) -> list[str]:
        """Send a message; returns lines for the log."""
        said: list[str] = []
        for name, why in await self.send(notices):
            if why and name not in self._failing:
                self._failing.add(name)
                said.append(f"calls for help do not reach {name}: {why}")
            elif not why and name in self._failing:
                self._failing.discard(name)
                said.append(f"calls for help reach {name} again")
        return said

    async def send_test(self, wall: float) -> list[tuple[str, str]]:
        """Send a test message; returns each address with the failure, or an empty text. `wall`: now, epoch seconds."""
        text = "A test: calls for help of hivemind arrive here."
        return await self.send([Notice("test", "began", text, None, wall, None)])

    async def send(self, notices: Sequence[Notice]) -> list[tuple[str, str]]:
        """Send a message; returns each address with the failure, or an empty text."""
        title = f"hivemind: {notices[0].cause}" if len(notices) == 1 else f"hivemind: {len(notices)} alerts"
        lines = [notice.text for notice in notices[:_MOST_LINES]]
        if len(notices) > _MOST_LINES:
            lines.append(f"… and {len(notices) - _MOST_LINES} more")
        body = "\n".join(lines)
        sent = [address.send(title, body, _kind(notices)) for address in self.addresses]
        await asyncio.wait(sent, timeout=TIMEOUT_S)
        return [
            (address.name, one.result() if one.done() else f"no answer within {TIMEOUT_S:.0f} s")
            for address, one in zip(self.addresses, sent, strict=True)
        ]


def _kind(notices: Sequence[Notice]) -> "NotifyType":
    kinds: type[NotifyType] = _apprise().NotifyType
    if all(notice.state == "ended" for notice in notices):
        return kinds.SUCCESS
    return kinds.WARNING if all(notice.cause == Cause.CONTEXT.value for notice in notices) else kinds.FAILURE


def _without(url: str, text: str) -> str:
    """A text without any part of an address, except the scheme."""
    secret = url.partition("://")[2] or url
    parts = {*_WORD.findall(secret), *map(unquote, _SEPARATOR.split(secret))}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= _LONG:
            text = text.replace(part, "…")
    return " ".join(text.split())[:200]


class _Reasons(logging.Handler):
    """Collects the log lines of Apprise per thread: the reasons for failures, which calls of Apprise do not return."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the first line: later lines only say that the call failed."""
        self._said.text = getattr(self._said, "text", "") or record.getMessage()

    def taken(self) -> str:
        """The line of this thread since the last call."""
        text: str = getattr(self._said, "text", "")
        self._said.text = ""
        return text


_reasons = _Reasons()


def _apprise() -> Any:
    try:
        import apprise  # noqa: PLC0415 - an extra; it takes half a second
    except ModuleNotFoundError as error:
        if error.name != "apprise":
            raise
        raise BadAddresses(
            f"addresses need Apprise; {sys.executable} -m pip install 'hivemind-addon[alerts]'"
        ) from error
    log = logging.getLogger("apprise")
    if _reasons not in log.handlers:
        log.addHandler(_reasons)
        log.propagate = False  # the lines of Apprise may hold addresses
        log.setLevel(logging.WARNING)
    return apprise
