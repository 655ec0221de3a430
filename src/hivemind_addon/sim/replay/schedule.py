"""What the scheduler decided in one replay: every admission, backoff and refusal, in order. Values and their file.

The file is JSON that people read: one decision a line, so that a diff of two versions shows decisions.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import msgspec

from hivemind_addon.kernel.values.events import AttemptStarted, BackedOff, Event, Held, Submitted, TicketEnded
from hivemind_addon.sim.replay.chains import DELIVERED
from hivemind_addon.sim.replay.reconstruct import Replayable
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
