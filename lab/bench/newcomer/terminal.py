"""A terminal with a shell in it: a program types, and reads the screen as a person would."""

import copy
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pexpect
import pyte
from pyte.screens import Char

Row = tuple[tuple[str, "Style"], ...]
"""A line of a screen: pieces of text that look alike."""


_ALTERNATE = re.compile(rb"\x1b\[\?1049([hl])")
_KITTY = re.compile(rb"\x1b\[[<>=][0-9;]*u")
_UNFINISHED = re.compile(rb"\x1b(\[[?<>=0-9;]*)?$")
"""Of these pyte knows nothing: the second screen, keyboard protocols; and what a read has cut in two."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a piece of text looks; colours as pyte names them."""

    ink: str = "default"
    ground: str = "default"
    bold: bool = False
    italics: bool = False
    underscore: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """What a screen showed, and for how long."""

    rows: tuple[Row, ...]
    lasts_s: float


class NotSeen(Exception):
    """What was waited for did not come; the text has the screen."""


@dataclass
class Terminal:
    """A shell of an empty home, so wide and high. There are no start-up files, and the prompt is `$ `."""

    environment: Mapping[str, str]
    cwd: Path
    columns: int = 80
    rows: int = 24
    frames: list[Frame] = field(default_factory=list)
    """What was to be seen, while `film` was true."""
    film: bool = False

    def __post_init__(self) -> None:
        self._screen = pyte.Screen(self.columns, self.rows)
        self._stream = pyte.ByteStream(self._screen)
        shell = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PS1": "$ ", "PROMPT_COMMAND": ""}
        self._process = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile", "-i"],
            env=dict(self.environment) | shell,
            cwd=str(self.cwd),
            dimensions=(self.rows, self.columns),
            echo=True,
        )
        self._under: tuple[object, object] | None = None
        """The first screen and the cursor, while the second screen is shown."""
        self._unfinished = b""
        self._typed = 0
        """Commands so far."""
        self._shown: tuple[Row, ...] = ()
        self._since = time.perf_counter()
        self.until(lambda text: text.rstrip().endswith("$"), "the prompt", 30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close(force=True)

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self._screen.display)

    @property
    def pid(self) -> int:
        """Of the shell."""
        return self._process.pid

    def type(self, line: str, *, every_s: float = 0.0) -> None:
        """Type a line and Enter; `every_s`: between two keys."""
        if not every_s:
            self._process.send(line + "\r")
            return
        for key in line:
            self._process.send(key)
            self.look(every_s)
        self._process.send("\r")

    def press(self, keys: str) -> None:
        """Keys as they are."""
        self._process.send(keys)

    def look(self, seconds: float) -> None:
        """Go on reading for so long."""
        ends_at = time.perf_counter() + seconds
        while (left_s := ends_at - time.perf_counter()) > 0:
            self._read(min(left_s, 0.05))

    def until(self, condition: Callable[[str], bool] | str, what: str, within_s: float) -> float:
        """Read until it holds (a string: until it is to be seen); how long that took. Raises NotSeen."""
        began_at = time.perf_counter()
        while not (condition in self.text if isinstance(condition, str) else condition(self.text)):
            if time.perf_counter() - began_at > within_s:
                raise NotSeen(f"{what} is not to be seen after {within_s:g} s:\n{self.text}")
            self._read(0.05)
        return time.perf_counter() - began_at

    def run(self, line: str, within_s: float) -> tuple[int, str]:
        """Type a command that ends by itself: the exit status, and the screen then."""
        self._typed += 1
        mark = f"\nended-{self._typed}-"
        self.type(f"clear; {line}; printf '\\nended-{self._typed}-%s-\\n' $?")
        self.until(lambda text: mark in f"\n{text}" and f"\n{text}".split(mark)[-1][:1].isdigit(), line, within_s)
        seen, _, status = f"\n{self.text}".rpartition(mark)
        return int(status.split("-")[0]), seen

    def now(self) -> tuple[Row, ...]:
        """The screen as it is."""
        return tuple(self._row(number) for number in range(self.rows))

    def _read(self, within_s: float) -> None:
        try:
            self._feed(self._process.read_nonblocking(65536, within_s))
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF as error:
            raise NotSeen(f"the shell has ended:\n{self.text}") from error
        if self.film:
            self._keep()

    def _feed(self, data: bytes) -> None:
        data = _KITTY.sub(b"", self._unfinished + data)
        cut = _UNFINISHED.search(data)
        self._unfinished = data[cut.start() :] if cut else b""
        plain, *rest = _ALTERNATE.split(data[: cut.start()] if cut else data)
        self._stream.feed(plain)
        for switch, more in zip(rest[::2], rest[1::2], strict=True):
            if switch == b"h":
                self._under = copy.deepcopy(self._screen.buffer), copy.deepcopy(self._screen.cursor)
                self._screen.erase_in_display(2)
            elif self._under is not None:
                self._screen.buffer, self._screen.cursor = self._under
                self._under = None
            self._stream.feed(more)

    def _keep(self) -> None:
        rows, at = self.now(), time.perf_counter()
        if rows != self._shown:
            if self._shown:
                self.frames.append(Frame(self._shown, at - self._since))
            self._shown, self._since = rows, at

    def cut(self) -> list[Frame]:
        """End the film: the frames."""
        self.frames.append(Frame(self._shown, time.perf_counter() - self._since))
        self.film = False
        return self.frames

    def _row(self, number: int) -> Row:
        pieces: list[tuple[str, Style]] = []
        line = self._screen.buffer[number]
        for column in range(self.columns):
            char = line[column]
            style = _style(char)
            if pieces and pieces[-1][1] == style:
                pieces[-1] = (pieces[-1][0] + char.data, style)
            else:
                pieces.append((char.data, style))
        return tuple(pieces)


def _style(char: Char) -> Style:
    ink, ground = (char.bg, char.fg) if char.reverse else (char.fg, char.bg)
    if char.reverse:
        ink, ground = ("ground" if ink == "default" else ink), ("ink" if ground == "default" else ground)
    return Style(ink, ground, char.bold, char.italics, char.underscore)
