"""Captures as regression tests: a schedule beside the one that is expected, and in words how they differ.

Where they first part, and how far apart they end. The expectation is a file beside its capture.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hivemind_addon.plugins.captures.model import NotACapture
from hivemind_addon.sim.replay.limits import BadLimit, given_limit
from hivemind_addon.sim.replay.reconstruct import NothingToReplay, reconstruct
from hivemind_addon.sim.replay.schedule import (
    BadExpectation,
    Decision,
    ReplaySettings,
    Schedule,
    Totals,
    from_text,
    schedule_of,
    to_text,
)
from hivemind_addon.sim.replay.whatif import notes

_SAME_INSTANT_S = 0.002
"""Instants are written in milliseconds; another machine's rounding is no other decision."""
_BEFORE, _AFTER = 3, 5
"""Decisions shown around the first one that differs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How a schedule departs from the one that was expected."""

    place: int
    """Index of the first decision that differs; as many as there are when only totals do."""
    expected: Sequence[Decision]
    now: Sequence[Decision]
    moved: int
    """Decisions that both have, at other instants or in other words."""
    gone: int
    """Expected ones that were not made."""
    new: int
    """Made, and not expected."""
    totals: tuple[tuple[str, str, str], ...]
    """What came of it: name, expected, now; only what differs."""


def difference(expected: Schedule, now: Schedule) -> Difference | None:
    """None: they decide the same, at the same instants."""
    totals = tuple(_totals(expected.totals, now.totals))
    place = next(
        (
            place
            for place, (theirs, ours) in enumerate(zip(expected.decisions, now.decisions, strict=False))
            if not _is_same(theirs, ours)
        ),
        min(len(expected.decisions), len(now.decisions)),
    )
    if place == len(expected.decisions) == len(now.decisions) and not totals:
        return None
    theirs, ours = _numbered(expected.decisions), _numbered(now.decisions)
    common = theirs.keys() & ours.keys()
    return Difference(
        place=place,
        expected=expected.decisions,
        now=now.decisions,
        moved=sum(not _is_same(theirs[key], ours[key]) for key in common),
        gone=len(theirs) - len(common),
        new=len(ours) - len(common),
        totals=totals,
    )


def in_words(difference: Difference) -> str:
    """What a person reads in a terminal: some twenty lines of at most 100 columns, as far as names allow."""
    return "\n".join(_words(difference))


def _words(found: Difference) -> Iterator[str]:
    expected, now = _at(found.expected, found.place), _at(found.now, found.place)
    if expected is None and now is None:
        yield "all decisions are the same, but not what came of them"
    else:
        at_s = min(one.at_s for one in (expected, now) if one is not None)
        yield f"the schedule first differs at {at_s:.3f} s, in decision {found.place + 1} of {len(found.expected)}:"
        yield f"  expected  {_line(expected)}"
        yield f"  now       {_line(now)}"
        yield from _fate(found, expected, now)
        yield ""
        yield "around it (- expected, + now):"
        yield from (f"    {_line(one)}" for one in found.now[max(0, found.place - _BEFORE) : found.place])
        yield from _interleaved(
            found.expected[found.place : found.place + _AFTER], found.now[found.place : found.place + _AFTER]
        )
        yield ""
        yield f"in all: {found.moved} moved, {found.gone} gone, {found.new} new of {len(found.expected)} decisions"
    yield from (f"  {name}: {was} → {now_is}" for name, was, now_is in found.totals)


def _fate(found: Difference, expected: Decision | None, now: Decision | None) -> Iterator[str]:
    """What became of the decision that should have come, and what the one that came should have been."""
    if expected is not None and (now is None or _key(expected) != _key(now)):
        later = _same_in(found.now, expected, _numbered(found.expected))
        yield f"  {_name(expected)} is {_moved(expected, later, 'now')}"
    if now is not None and (expected is None or _key(expected) != _key(now)):
        earlier = _same_in(found.expected, now, _numbered(found.now))
        yield f"  {_name(now)} was {_moved(now, earlier, 'expected')}"
    if expected is not None and now is not None and _key(expected) == _key(now):
        apart_s = now.at_s - expected.at_s
        if abs(apart_s) > _SAME_INSTANT_S:
            yield f"  {_name(now)} comes {abs(apart_s):.3f} s {'later' if apart_s > 0 else 'earlier'}"
        else:
            yield f"  {_name(now)} comes when it should, but otherwise"


def _moved(decision: Decision, other: Decision | None, side: str) -> str:
    if other is None:
        return "now never made" if side == "now" else "not expected at all"
    apart_s = other.at_s - decision.at_s
    when = f"at {other.at_s:.3f} s"
    if abs(apart_s) <= _SAME_INSTANT_S:
        return f"{side} {when}, too: their order differs"
    return f"{side} {when}, {abs(apart_s):.3f} s {'later' if apart_s > 0 else 'earlier'}"


def _interleaved(expected: Sequence[Decision], now: Sequence[Decision]) -> Iterator[str]:
    """Both sides by time; what is on both stands once."""
    same = {id(theirs): ours for theirs in expected for ours in now if _is_same(theirs, ours)}
    rows = [(one.at_s, 0, "  " if id(one) in same else "- ", one) for one in expected]
    shared = {id(one) for one in same.values()}
    rows += [(one.at_s, 1, "+ ", one) for one in now if id(one) not in shared]
    for _, _, sign, one in sorted(rows, key=lambda row: row[:2]):
        yield f"  {sign}{_line(one)}"


def _totals(expected: Totals, now: Totals) -> Iterator[tuple[str, str, str]]:
    for name, was, now_is in (
        ("agents", expected.agents, now.agents),
        ("agents lost", expected.lost, now.lost),
        ("attempts", expected.attempts, now.attempts),
        ("refused by rate limits", expected.refusals, now.refusals),
    ):
        if was != now_is:
            yield name, str(was), str(now_is)
    if abs(expected.makespan_s - now.makespan_s) > _SAME_INSTANT_S:
        yield "all over", f"{expected.makespan_s:.3f} s", f"{now.makespan_s:.3f} s"
    later: Counter[bool] = Counter()
    farthest = ("", 0.0)
    for agent in expected.ends_s.keys() & now.ends_s.keys():
        apart_s = now.ends_s[agent] - expected.ends_s[agent]
        if abs(apart_s) > _SAME_INSTANT_S:
            later[apart_s > 0] += 1
            farthest = max(farthest, (agent, apart_s), key=lambda one: (abs(one[1]), one[0]))
    if later:
        agent, apart_s = farthest
        yield (
            "agents that end at another time",
            "0",
            f"{later[True]} later, {later[False]} earlier; farthest {agent}, {apart_s:+.3f} s",
        )


def _is_same(expected: Decision, now: Decision) -> bool:
    if _key(expected) != _key(now) or abs(expected.at_s - now.at_s) > _SAME_INSTANT_S:
        return False
    words = expected.how.split(), now.how.split()
    return len(words[0]) == len(words[1]) and all(map(_is_same_word, *words))


def _is_same_word(expected: str, now: str) -> bool:
    """Spans of time are instants' differences, and rounded as these are."""
    if expected == now:
        return True
    try:
        return "." in expected and abs(float(expected) - float(now)) <= _SAME_INSTANT_S
    except ValueError:
        return False


def _key(decision: Decision) -> tuple[str, str, str]:
    return decision.agent, decision.call, decision.what


def _numbered(decisions: Sequence[Decision]) -> dict[tuple[tuple[str, str, str], int], Decision]:
    """By call and kind, and which of them it is."""
    seen: Counter[tuple[str, str, str]] = Counter()
    numbered = {}
    for one in decisions:
        seen[_key(one)] += 1
        numbered[_key(one), seen[_key(one)]] = one
    return numbered


def _same_in(
    others: Sequence[Decision], decision: Decision, own: dict[tuple[tuple[str, str, str], int], Decision]
) -> Decision | None:
    number = next(key for key, one in own.items() if one is decision)
    return _numbered(others).get(number)


def _at(decisions: Sequence[Decision], place: int) -> Decision | None:
    return decisions[place] if place < len(decisions) else None


def _name(decision: Decision) -> str:
    return f"call {decision.call} of {decision.agent}"


def _line(decision: Decision | None) -> str:
    if decision is None:
        return "nothing: it is over"
    how = f" ({decision.how})" if decision.how else ""
    return f"{decision.at_s:10.3f} s  {decision.agent}  {decision.call}  {decision.what}{how}"


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
        from hivemind_addon.plugins.captures.file import read_capture  # noqa: PLC0415 - it loads mitmproxy

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
