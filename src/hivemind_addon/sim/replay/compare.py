"""Captures as regression tests: a schedule beside the expected schedule, and a diff where they first differ.

The expectation is a file beside its capture: JSON that people read, one decision a line, so that a diff of two versions
shows decisions.
"""

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from difflib import unified_diff
from itertools import islice, zip_longest
from pathlib import Path

import msgspec

from hivemind_addon.kernel.values.events import AttemptStarted, BackedOff, Event, Held, Submitted, TicketEnded
from hivemind_addon.plugins.captures.model import NotACapture
from hivemind_addon.sim.replay.chains import DELIVERED
from hivemind_addon.sim.replay.limits import BadLimit, given_limit
from hivemind_addon.sim.replay.reconstruct import NothingToReplay, Replayable, reconstruct
from hivemind_addon.sim.replay.whatif import notes
from hivemind_addon.sim.world import World

VERSION = 1


class BadExpectation(Exception):
    """An expectation that cannot be read: one line with the cure."""


class Decision(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One thing that the scheduler decided."""

    at_s: float
    agent: str
    call: str
    """The captured call's id."""
    what: str
    """`sent`, `backs off`, `shed`, `gave up`, `refused` or `cancelled`."""
    how: str = ""
    """`attempt 2, waited 3.200 s: rate limit`."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What came of it."""

    agents: int
    lost: int
    makespan_s: float
    attempts: int
    refusals: int
    ends_s: dict[str, float] = field(default_factory=dict)
    """When each agent came to its end, who did."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How the capture is replayed. May be edited by hand."""

    agents: int = 1
    """So many times."""
    limits: tuple[str, ...] = ()
    """As `hivemind replay --limit` takes them."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """One replay under the scheduler."""

    asked: ReplaySettings
    totals: Totals
    decisions: tuple[Decision, ...]
    version: int = VERSION


def schedule_of(replayable: Replayable, asked: ReplaySettings) -> Schedule:
    """Run it and write down what was decided."""
    book = _Book()
    result = World(replayable.scenario, seed=asked.seed, listen=book.note).run()
    return Schedule(
        asked=asked,
        totals=Totals(
            agents=result.agents,
            lost=result.lost,
            makespan_s=round(result.makespan_s, 3),
            attempts=result.attempts,
            refusals=result.statuses[429],
            ends_s={name: round(crowd.ended_s[0], 3) for name, crowd in sorted(result.crowds.items()) if crowd.ended_s},
        ),
        decisions=tuple(book.decisions),
    )


class _Book:
    """Decisions, from the scheduler's events."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self._asks: dict[str, Submitted] = {}
        self._why: dict[str, str] = {}

    def note(self, event: Event) -> None:
        match event:
            case Submitted(ticket=ticket):
                self._asks[ticket.id] = event
            case Held(ticket_id=name, reason=reason):
                self._why[name] = reason.value
            case AttemptStarted(ticket_id=name):
                why = self._why.pop(name, "")
                how = f"attempt {event.attempt}"
                if event.waited_s >= 0.0005:
                    how += f", waited {event.waited_s:.3f} s" + (f": {why}" if why else "")
                self._add(event.at, name, "sent", how)
            case BackedOff(ticket_id=name):
                self._why[name] = event.reason
                self._add(event.at, name, "backs off", f"until {event.until:.3f} s: {event.reason}")
            case TicketEnded(ticket_id=name):
                if event.end != DELIVERED:
                    self._add(event.at, name, event.end, event.reason)
                del self._asks[name]
            case _:
                pass

    def _add(self, at: float, name: str, what: str, how: str) -> None:
        ticket = self._asks[name].ticket
        self.decisions.append(Decision(round(at, 3), ticket.agent, ticket.request_hash, what, how))


# The file ------------------------------------------------------------------------------------------------------------


def to_text(schedule: Schedule) -> str:
    """The expectation as a file: one decision a line."""
    totals = asdict(schedule.totals)
    ends_s = totals.pop("ends_s")
    return (
        f'{{\n  "version": {schedule.version},\n  "asked": {_json(asdict(schedule.asked))},\n'
        f'  "totals": {_json(totals)[:-1]},\n    "ends_s": {{\n'
        + _rows(f"      {_json(name)}: {at}" for name, at in ends_s.items())
        + '    }},\n  "decisions": [\n'
        + _rows(f"    {_json(msgspec.to_builtins(one))}" for one in schedule.decisions)
        + "  ]\n}\n"
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rows(lines: Iterable[str]) -> str:
    text = ",\n".join(lines)
    return text and text + "\n"


def from_text(text: str) -> Schedule:
    """The expectation of a file's text. Raises BadExpectation, whose text does not name the file."""
    try:
        schedule = msgspec.json.decode(text, type=Schedule)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadExpectation(f"it is no expectation ({error}); write it anew with --hivemind-accept") from error
    if schedule.version != VERSION:
        raise BadExpectation(
            f"it is of version {schedule.version}, this package writes {VERSION}; write it anew with --hivemind-accept"
        )
    return schedule


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
    totals: tuple[tuple[str, str, str], ...]
    """The figures of the runs that differ: name, expected, now."""


def difference(expected: Schedule, now: Schedule) -> Difference | None:
    """None: they decide the same, at the same instants."""
    totals = tuple(_totals(expected.totals, now.totals))
    pairs = enumerate(zip_longest(expected.decisions, now.decisions))
    place = next((place for place, (theirs, ours) in pairs if not _is_same(theirs, ours)), len(expected.decisions))
    if place == len(expected.decisions) == len(now.decisions) and not totals:
        return None
    return Difference(place, expected.decisions, now.decisions, totals)


def in_words(difference: Difference) -> str:
    """For a terminal: some fifteen lines."""
    return "\n".join(_words(difference))


def _words(found: Difference) -> Iterator[str]:
    place, count = found.place, len(found.expected)
    if place == count == len(found.now):
        yield "all decisions are the same, but not what came of them"
    else:
        at_s = min(one.at_s for side in (found.expected, found.now) for one in side[place : place + 1])
        yield f"the schedule first differs at {at_s:.3f} s, in decision {place + 1} of {count} (- expected, + now):"
        shown = slice(max(0, place - _BEFORE), place + _AFTER)
        theirs, ours = list(map(_line, found.expected[shown])), list(map(_line, found.now[shown]))
        ours[: place - shown.start] = theirs[: place - shown.start]  # the same but for rounding
        yield from islice(unified_diff(theirs, ours, lineterm="", n=_BEFORE), 3, None)  # behind the names of files
        same = (Counter(map(_line, found.expected)) & Counter(map(_line, found.now))).total()
        yield f"in all: {count - same} of {count} decisions are gone or otherwise, {len(found.now) - same} are new"
    yield from (f"  {name}: {was} → {now_is}" for name, was, now_is in found.totals)


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


def _is_same(expected: Decision | None, now: Decision | None) -> bool:
    if expected is None or now is None or _key(expected) != _key(now):
        return False
    if abs(expected.at_s - now.at_s) > _SAME_INSTANT_S:
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


def _line(decision: Decision) -> str:
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
        from hivemind_addon.sim.trace import read_recorded  # noqa: PLC0415 - it loads mitmproxy

    try:
        given = [given_limit(text) for text in asked.limits]
    except BadLimit as error:
        raise Unlike(f"{expectation}: {error}") from error
    try:
        capture = read_recorded(file)
        replayable = reconstruct(capture, given=given, copies=asked.agents, seed=asked.seed)
    except NotACapture as error:
        raise Unlike(str(error)) from error
    except (NothingToReplay, BadLimit) as error:
        raise Unlike(f"{file}: {error}") from error
    return schedule_of(replayable, asked), tuple(notes(capture, replayable)) if capture.damage else ()
