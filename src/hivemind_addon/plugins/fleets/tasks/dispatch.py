"""Which task starts next, and when. Pure: `now` and a random generator are passed.

**Order.** Among those that are ready: priority class first, then the shorter estimate, then who came first. Every five
minutes of waiting lift a task by one class, without end: whoever comes later is passed some day, so nobody starves.
Children of a task that waits for them go four classes higher: the place that it lent is theirs first, and trees are
finished before new ones are begun.

**Places.** There are N in all. A worker group has some of its own, and they serve its queue; the rest serve the common
queue. One whose own queue is empty takes from the longest other queue, and only where that is longer than the
threshold: so a short queue keeps its order and its workers, and a long one gets help.

**Staggered.** Between two starts lies a jittered gap, so that agents do not all begin, and call, at one moment.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hivemind_addon.kernel.values.ticket import Priority

LIFT_S = 300.0
"""Waiting that is worth one priority class."""
_CHILD_CLASSES = 4
COMMON = ""
"""The group of those that name none."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task that could start now."""

    name: str
    group: str
    priority: Priority
    tokens: float
    """Estimated."""
    ready_at: float
    number: int
    """In order of arrival."""
    is_awaited: bool
    """A task that has lent its place waits for it."""


@dataclass(frozen=True, slots=True)
class TaskStart:
    """A task that starts, and the group whose place it takes."""

    name: str
    group: str


def places(at_most: int, groups: Mapping[str, int]) -> dict[str, int]:
    """Group → its places; what the groups leave is the common queue's."""
    return {**groups, COMMON: max(0, at_most - sum(groups.values()))}


def rank(one: Candidate, now: float) -> tuple[int, float, int]:
    """Its place in the order: the smallest goes first."""
    lifted = int(max(0.0, now - one.ready_at) // LIFT_S) + (_CHILD_CLASSES if one.is_awaited else 0)
    return one.priority.value - lifted, one.tokens, one.number


def choose(
    ready: Collection[Candidate], free: Mapping[str, int], *, steal_above: int | None, now: float
) -> TaskStart | None:
    """The next one, if a place that may serve it is free. `steal_above` None: no group helps another."""
    queues: dict[str, list[Candidate]] = {}
    for one in ready:
        queues.setdefault(one.group, []).append(one)
    offers = []
    for group, count in free.items():
        queue = _served(group, queues, steal_above) if count > 0 else []
        if queue:
            offers.append((min(queue, key=lambda one: rank(one, now)), group))
    if not offers:
        return None
    # A queue's own worker before one that helps, where both could take the same task.
    best, group = min(offers, key=lambda offer: (rank(offer[0], now), offer[0].group != offer[1]))
    return TaskStart(best.name, group)


def _served(group: str, queues: Mapping[str, Sequence[Candidate]], steal_above: int | None) -> Sequence[Candidate]:
    if own := queues.get(group):
        return own
    if steal_above is None:
        return ()
    return max((queue for queue in queues.values() if len(queue) > steal_above), key=len, default=())


class Stagger:
    """The gap between starts."""

    def __init__(self, every_s: float, *, rng: Random) -> None:
        self._every_s = every_s
        self._rng = rng
        self._next_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Stagger, next at {self._next_at:.2f}>"

    @property
    def next_at(self) -> float:
        """Before this nothing starts."""
        return self._next_at

    def started(self, now: float) -> None:
        """One has: the next one comes half a gap to one and a half later."""
        self._next_at = now + self._every_s * self._rng.uniform(0.5, 1.5)


def mean_tokens(said: Sequence[int]) -> float:
    """What a task without an estimate counts as: the mean of those that have one."""
    return sum(said) / len(said) if said else 0.0
