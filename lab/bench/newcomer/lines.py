"""What README and docs/start.md tell a new user to type, typed: each line has to work."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lab.bench.newcomer.house import House
from lab.bench.newcomer.terminal import Terminal
from tests.shell_lines import blocks

_PATIENCE_S = 240


@dataclass(frozen=True, slots=True)
class Stays:
    """A line that goes on until a person ends it."""

    sign: str
    """What is to be seen when it works."""
    end: str
    """The keys that end it."""
    at_once: bool = False
    """Whether it is ended before the next line."""


STAYS: Mapping[str, Stays] = {
    "hivemind demo --watch": Stays("?token=", "q", at_once=True),
    "hivemind sim": Stays("Ctrl-C ends it.", "\x03"),
    "hivemind run": Stays("hivemind: listening at", "\x03"),
    "hivemind exec -- claude": Stays("Claude Code", "\x03\x03", at_once=True),
}
_PORTS = {"sim": "9100", "proxy": "8080"}
"""As the pages have them."""


def lines_of(page: Path) -> list[str]:
    """The lines of the page's `sh` blocks, without the remarks behind them."""
    return [
        re.split(r"\s+# ", line)[0]
        for _, line in blocks(page)
        if line.split()[0] in ("hivemind", "export", "claude", "uv")
    ]


@dataclass
class Typist:
    """Types a page's lines in a house, each long-lived line in another terminal."""

    house: House
    ports: Mapping[str, int]
    """Of `sim` and `proxy`, in the places of those that the pages name, which may be somebody's."""
    more: Mapping[str, str]
    """A line → another line: what installs from a checkout, for example, where there is none."""

    def __post_init__(self) -> None:
        self._stack = ExitStack()
        self._open: list[tuple[Terminal, Stays]] = []
        self.seen: dict[str, str] = {}
        """Line → what was on the screen."""

    def __enter__(self) -> Self:
        self._main = self._stack.enter_context(self._terminal())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            self._stack.close()

    def type(self, line: str) -> None:
        """A line, until it has worked. Raises AssertionError, NotSeen."""
        stays = next((how for begin, how in STAYS.items() if line.startswith(begin)), None)
        typed = self.more.get(line, self._moved(line))
        if stays is None:
            status, seen = self._main.run(typed, _PATIENCE_S)
            assert status == 0, f"{typed}: status {status}\n{seen}"
            self.seen[line] = seen
            return
        if line.startswith("hivemind exec"):
            self.close()
        terminal = self._stack.enter_context(self._terminal())
        terminal.type(typed)
        terminal.until(stays.sign, line, _PATIENCE_S)
        if stays.at_once:
            terminal.look(2)
        self.seen[line] = terminal.text
        self._open.append((terminal, stays))
        if stays.at_once:
            self._end(*self._open.pop())

    def close(self) -> None:
        """End what still runs, the newest first."""
        while self._open:
            self._end(*self._open.pop())

    def _end(self, terminal: Terminal, stays: Stays) -> None:
        for key in stays.end:
            terminal.press(key)
            terminal.look(0.5)
        terminal.until(lambda text: text.rstrip().endswith("$"), "the prompt", 60)

    def _terminal(self) -> Terminal:
        return Terminal(self.house.environment, self.house.home, columns=100, rows=40)

    def _moved(self, line: str) -> str:
        for name, port in _PORTS.items():
            line = line.replace(f":{port}", f":{self.ports[name]}")
        if re.match(r"hivemind (run|status|history|top|exec|eta)\b", line):
            words = line.split(" ", 2)
            return " ".join([*words[:2], f"-p {self.ports['proxy']}", *words[2:]])
        return line.replace("hivemind sim", f"hivemind sim --port {self.ports['sim']}")


def left_running(house: House) -> Iterator[str]:
    """Command lines of processes whose home is that house's; nothing where there is no /proc."""
    mark = f"HOME={house.home}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name != str(os.getpid()) and mark in (folder / "environ").read_bytes():
                yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended, or is another user's
            continue
