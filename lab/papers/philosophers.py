"""Three agents, and three things between them of which each needs two at once: the dining philosophers.

The rules are DPBench's, so that its figures can stand beside ours. Time goes in rounds. In a round all act at once, and
each takes or puts down one thing; who has both uses them for a round, and then puts both down. DPBench's run ends with
its first deadlock (each holds one thing and waits for the next); here it goes on, to see whether anybody gets out.

The agents are modelled: who has one thing keeps it until it has the other, and who has none reaches for its left one
with a probability that says how alike they are: 1/2 is a coin, the kindest case, 1 is three copies of one model. Talk
is modelled, too. The locks are not: they are the product's own lease store, asked in virtual time.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

from hivemind_addon.plugins.fleets.leases.model import Holder, Lease, LeaseStore, Request
from hivemind_addon.plugins.fleets.leases.sqlite_store import SqliteLeases

AGENTS = 3
ROUNDS = 30
_ROUND_S = 1.0
_TTL_S = 600.0
"""Of a lock: longer than a run, as if its holder renewed it."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
"""Where it is there, the store's file is in it: a loss of power is no part of this, and a disk takes minutes."""
_BETWEEN_RUNS_S = 1000.0
"""Until everything of the last run is over in the store."""


class LockWay(Enum):
    """How an agent asks the store for its two things."""

    ONE_BY_ONE = "locks, one after the other"
    IN_ORDER = "locks, one after the other, in one order for all"
    TOGETHER = "leases, all or none"


@dataclass(frozen=True, slots=True)
class Dinner:
    """What came of one run."""

    deadlocked: bool
    """Whether at some time each held one thing and waited for the next."""
    is_stuck: bool
    """Whether it is so at the end."""
    used: int
    """How often somebody had both things."""


@dataclass(slots=True)
class _Diner:
    """One agent: its things are `number` and the next one."""

    number: int
    held: set[int] = field(default_factory=set)
    is_eating: bool = False

    @property
    def things(self) -> tuple[int, int]:
        return self.number, (self.number + 1) % AGENTS

    @property
    def other(self) -> int:
        """What it lacks, where it holds one."""
        left, right = self.things
        return right if left in self.held else left

    def takes(self, thing: int) -> None:
        """At once it eats, if it has both."""
        self.held.add(thing)
        self.is_eating = len(self.held) == len(self.things)


class _Table:
    """Counts what is in common to all ways."""

    def __init__(self) -> None:
        self.diners = [_Diner(number) for number in range(AGENTS)]
        self._used = 0
        self._deadlocked = False

    def begin(self) -> list[_Diner]:
        """Of a round: who has used its things puts them down, and these are the others, who want some."""
        hungry = [diner for diner in self.diners if not diner.is_eating]
        for diner in self.diners:
            if diner.is_eating:
                diner.held.clear()
                diner.is_eating = False
        return hungry

    def end(self) -> None:
        """Of a round."""
        self._used += sum(diner.is_eating for diner in self.diners)
        self._deadlocked = self._deadlocked or self.is_circle

    @property
    def is_circle(self) -> bool:
        return all(len(diner.held) == 1 for diner in self.diners)

    @property
    def dinner(self) -> Dinner:
        return Dinner(self._deadlocked, self.is_circle, self._used)


def talked(rng: random.Random, *, alike: float, kept: float) -> Dinner:
    """A run of agents that talk before each round, and take and put down as they like.

    Each says what it is about to take, and who gets what two want is settled. Where that would leave each with one
    thing, they agree that one of them, another in each round, puts down what it has and takes nothing. It does so with
    the probability `kept`, and else what it had in mind: models do not always do what they said.
    """
    table = _Table()
    for number in range(ROUNDS):
        hungry = table.begin()
        free = set(range(AGENTS)) - {thing for diner in table.diners for thing in diner.held}
        wishes = {diner.number: _wish(diner, free, alike, rng) for diner in hungry}
        takes: dict[int, int] = {}
        for thing in sorted(free):
            if wanting := [diner for diner, wish in wishes.items() if wish == thing]:
                takes[rng.choice(wanting)] = thing
        if all(len(diner.held) + (diner.number in takes) == 1 for diner in table.diners) and rng.random() < kept:
            yielding = number % AGENTS
            table.diners[yielding].held.clear()
            takes.pop(yielding, None)
        for taker, thing in takes.items():
            table.diners[taker].takes(thing)
        table.end()
    return table.dinner


def _wish(diner: _Diner, free: set[int], alike: float, rng: random.Random) -> int | None:
    """What it would take now; None: nothing that it can have."""
    order = [diner.other] if diner.held else _left_first(diner, alike, rng)
    return next((thing for thing in order if thing in free), None)


def _left_first(diner: _Diner, alike: float, rng: random.Random) -> Sequence[int]:
    """Its two things, in the order in which it would have them."""
    return diner.things if rng.random() < alike else diner.things[::-1]


def locked(rng: random.Random, store: LeaseStore, begins_at: float, way: LockWay, *, alike: float) -> Dinner:
    """A run of agents that ask the store, and wait in its line for what others have."""
    table = _Table()
    orders: dict[int, Sequence[int]] = {}
    leases: dict[int, list[Lease]] = {diner.number: [] for diner in table.diners}
    for number in range(ROUNDS):
        now = begins_at + number * _ROUND_S
        hungry = table.begin()
        for diner in table.diners:
            if diner not in hungry:
                for lease in leases[diner.number]:
                    store.release(lease.id, now)
                leases[diner.number] = []
                orders.pop(diner.number)
        for diner in rng.sample(hungry, len(hungry)):
            order = orders.setdefault(diner.number, _order(diner, way, alike, rng))
            things = order if way is LockWay.TOGETHER else [thing for thing in order if thing not in diner.held][:1]
            answer = store.acquire(_request(diner, things), now, waiter=f"agent {diner.number}")
            if isinstance(answer, Lease):
                leases[diner.number].append(answer)
                for thing in things:
                    diner.takes(thing)
        table.end()
    return table.dinner


def _order(diner: _Diner, way: LockWay, alike: float, rng: random.Random) -> Sequence[int]:
    return sorted(diner.things) if way is LockWay.IN_ORDER else _left_first(diner, alike, rng)


def _request(diner: _Diner, things: Sequence[int]) -> Request:
    holder = Holder(f"agent {diner.number}", pid=0, started="")
    return Request(tuple(f"thing {thing}" for thing in things), holder, ttl_s=_TTL_S)


def talks(runs: int, *, alike: float, kept: float) -> list[Dinner]:
    """Runs of agents that talk, one for each seed from 0."""
    return [talked(random.Random(f"talk {seed}"), alike=alike, kept=kept) for seed in range(runs)]


def locks(runs: int, way: LockWay, *, alike: float) -> list[Dinner]:
    """Runs of agents that ask a store of their own, one for each seed from 0. Blocks: it writes a file."""
    memory = _MEMORY if _MEMORY.is_dir() else None
    with (
        TemporaryDirectory(prefix="hivemind-papers-", dir=memory) as folder,
        SqliteLeases(Path(folder) / "leases.db") as store,
    ):
        return [
            locked(random.Random(f"lock {seed}"), store, (seed + 1) * _BETWEEN_RUNS_S, way, alike=alike)
            for seed in range(runs)
        ]
