"""Which call waited for which: turns of a recorded session, put back into the order that caused them. Pure.

    a client's own re-sends (same request, after a failure)  ──► one turn
    a turn follows the turn that ended last before it arrived, and was followed by none; best one of the same
    conversation, as far as the beginnings of prompts tell
    two turns at once                                        ──► both follow the same one (a fork)
    a turn that nobody followed, though its session went on  ──► the next turn waited for it, too (a join)
    a sub-agent's first turn                                 ──► follows its parent's last turn before it
    the parent's next turn, when it did nothing meanwhile    ──► waited for the sub-agent

Nobody waits for titles and summaries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hivemind_addon.kernel.values.ticket import CallKind
from hivemind_addon.plugins.captures.model import CapturedAttempt, CapturedCall

_TOLERANCE_S = 0.05
"""A client may have sent its next request before the end of the last answer was booked."""
_UNATTENDED = (CallKind.AUXILIARY, CallKind.PREWARM)
DELIVERED = "delivered"


@dataclass(slots=True, eq=False)
class RecordedTurn:
    """One step of an agent: a call, with the client's own re-sends of it."""

    calls: list[CapturedCall]
    """At least one; the last one is what came of it."""
    after: list["RecordedTurn"] = field(default_factory=list)
    """What it waited for."""

    @property
    def id(self) -> str:
        """The first call's."""
        return self.calls[0].id

    @property
    def last(self) -> CapturedCall:
        """The call that its client made do with."""
        return self.calls[-1]

    @property
    def at_s(self) -> float:
        """When it was asked for first."""
        return self.calls[0].at_s

    @property
    def ended_s(self) -> float:
        """When its client had an answer, or gave it up."""
        return self.last.ended_s

    @property
    def attempts(self) -> list[CapturedAttempt]:
        """Of all its calls."""
        return [attempt for call in self.calls for attempt in call.attempts]

    @property
    def is_delivered(self) -> bool:
        """Whether an answer came in the end."""
        return self.last.end == DELIVERED

    @property
    def think_s(self) -> float:
        """From the end of what it waited for to its arrival; of the first ones, from the capture's begin."""
        return max(0.0, self.at_s - max((turn.ended_s for turn in self.after), default=0.0))

    @property
    def is_attended(self) -> bool:
        """Whether somebody waits for it."""
        return self.last.kind not in _UNATTENDED


def chained(calls: Iterable[CapturedCall]) -> list[RecordedTurn]:
    """The turns in the order of their arrival, each with what it waited for."""
    sessions: dict[str, list[RecordedTurn]] = {}
    for call in sorted(calls, key=lambda call: (call.at_s, call.id)):
        _place(call, sessions.setdefault(call.session, []))
    for turns in sessions.values():
        _follow(turns)
        _join(turns)
    for turns in sessions.values():
        _descend(turns, sessions)
    return sorted((turn for turns in sessions.values() for turn in turns), key=lambda turn: (turn.at_s, turn.id))


def _place(call: CapturedCall, turns: list[RecordedTurn]) -> None:
    """A turn of its own, or the re-send of one that failed."""
    for turn in reversed(turns):
        if call.request_hash and turn.last.request_hash == call.request_hash:
            if not turn.is_delivered and turn.ended_s <= call.at_s + _TOLERANCE_S:
                turn.calls.append(call)
                return
            break
    turns.append(RecordedTurn([call]))


def _follow(turns: Sequence[RecordedTurn]) -> None:
    """Each turn follows one, as long as there is one that ended before."""
    followed: set[str] = set()
    for turn in turns:
        over = [other for other in _before(turn, turns) if other.is_attended]
        free = [other for other in over if other.id not in followed]
        if candidates := free or over:
            prefix = turn.last.prefix
            previous = max(candidates, key=lambda other: (other.last.prefix == prefix, other.ended_s, other.at_s))
            turn.after.append(previous)
            if turn.is_attended:
                followed.add(previous.id)


def _join(turns: Sequence[RecordedTurn]) -> None:
    """A branch that ended before the session went on was waited for."""
    followed = {other.id for turn in turns if turn.is_attended for other in turn.after}
    for leaf in turns:
        if leaf.id in followed or not leaf.is_attended:
            continue
        later = (turn for turn in turns if turn.is_attended and _is_before(leaf, turn))
        if following := min(later, key=lambda turn: turn.at_s, default=None):
            following.after.append(leaf)


def _descend(turns: Sequence[RecordedTurn], sessions: Mapping[str, Sequence[RecordedTurn]]) -> None:
    """A sub-agent begins behind a turn of its parent, and ends before another one."""
    first = turns[0]
    parent = first.last.parent_session
    parents = sessions.get(parent, ()) if parent != first.last.session else ()
    if not parents:
        return
    for root in (turn for turn in turns if not turn.after):
        if over := [other for other in _before(root, parents) if other.is_attended]:
            root.after.append(max(over, key=lambda other: other.ended_s))
    if not first.after:
        return
    spawn = first.after[0]
    followed = {other.id for turn in turns for other in turn.after}
    leaves = [turn for turn in turns if turn.is_attended and turn.id not in followed]
    following = next((turn for turn in parents if spawn in turn.after and turn.is_attended), None)
    if following is not None and all(_is_before(leaf, following) for leaf in leaves):
        following.after.extend(leaves)


def _before(turn: RecordedTurn, turns: Iterable[RecordedTurn]) -> list[RecordedTurn]:
    """Those that were over when this one came."""
    return [other for other in turns if _is_before(other, turn)]


def _is_before(other: RecordedTurn, turn: RecordedTurn) -> bool:
    """Strictly an order, in spite of the tolerance: nobody waits for himself."""
    return other.ended_s <= turn.at_s + _TOLERANCE_S and (other.at_s, other.id) < (turn.at_s, turn.id)
