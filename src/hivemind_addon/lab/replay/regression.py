"""A capture as a regression test: what the scheduler decides on it is held by an expectation beside it."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from hivemind_addon.lab.replay.compare import difference, in_words
from hivemind_addon.lab.replay.limits import BadLimit, given_limit
from hivemind_addon.lab.replay.reconstruct import NothingToReplay, reconstruct
from hivemind_addon.lab.replay.schedule import BadExpectation, ReplaySettings, Schedule, from_text, schedule_of, to_text
from hivemind_addon.lab.replay.whatif import notes
from hivemind_addon.proxy.capture.model import NotACapture

_ACCEPT = "write what is decided now with `pytest --hivemind-accept`, look at it, and keep it beside the capture"


class Unlike(Exception):
    """The schedule is not the expected one, or there is none to compare: text for people, with the cure."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """An expectation was written."""

    change: str
    """What it changed, in one line; empty: nothing."""
    told: tuple[str, ...]
    """What a reader has to be warned of."""


def expectation_of(capture: Path) -> Path:
    """The file beside a capture."""
    return capture.with_name(f"{capture.stem}.expected.json")


def check(capture: Path) -> tuple[str, ...]:
    """Compare; the answer is what a reader has to be warned of. Raises Unlike."""
    file = expectation_of(capture)
    if not file.is_file():
        raise Unlike(f"{file} is missing: nothing says what is expected.\n{_ACCEPT}")
    expected = _read(file)
    now, told = _replay(capture, expected.asked, file)
    found = difference(expected, now)
    if found is not None:
        raise Unlike(f"{in_words(found)}\n\nif that is wanted: {_ACCEPT}\nexpected by {file}")
    return told


def accept(capture: Path) -> Accepted:
    """Write what is decided now; how the capture is replayed stays as the old expectation has it. Raises Unlike."""
    file = expectation_of(capture)
    try:
        old = _read(file) if file.is_file() else None
    except Unlike:
        old = None  # it cannot be read: that is why it is written anew
    now, told = _replay(capture, old.asked if old else ReplaySettings(), file)
    if old is not None and difference(old, now) is None:
        return Accepted("", told)
    file.write_text(to_text(now), encoding="utf-8")
    return Accepted(f"wrote {file} ({len(now.decisions)} decisions)", told)


def _read(file: Path) -> Schedule:
    try:
        return from_text(file.read_text(encoding="utf-8"))
    except (BadExpectation, UnicodeDecodeError) as error:
        raise Unlike(f"{file}: {error}") from error


def _replay(file: Path, asked: ReplaySettings, expectation: Path) -> tuple[Schedule, tuple[str, ...]]:
    with warnings.catch_warnings():
        # Pytest would show what mitmproxy's own imports make its libraries say.
        warnings.simplefilter("ignore", DeprecationWarning)
        from hivemind_addon.proxy.capture.file import read_capture  # noqa: PLC0415 - it loads mitmproxy

    try:
        given = [given_limit(text) for text in asked.limits]
    except BadLimit as error:
        raise Unlike(f"{expectation}: {error}") from error
    try:
        capture = read_capture(file)
        replayable = reconstruct(capture, given=given, copies=asked.agents, seed=asked.seed)
    except NotACapture as error:
        raise Unlike(str(error)) from error
    except (NothingToReplay, BadLimit) as error:
        raise Unlike(f"{file}: {error}") from error
    return schedule_of(replayable, asked), tuple(notes(capture, replayable)) if capture.damage else ()
