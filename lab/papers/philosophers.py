"""The dining philosophers: three agents share three things, and each agent needs two things at once.

The rules are those of DPBench, so that the figures can be compared. In a round all agents act at once, and each takes
or puts down a thing. An agent with both things uses them for a round, then puts both down. A run of DPBench ends with
the first deadlock (each agent holds one thing and waits for the next). A run here goes on: do the agents get out?

The agents are a model: an agent with a single thing keeps that thing until the agent has both, and an agent without any
reaches for the left thing with a probability that says how alike the agents are (1/2: a coin, the kindest case; 1:
three copies of a single model). Talk is a model, too. The locks are real: the product's lease store in virtual time.
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
"""Of a lock: longer than a run, as if the holder renewed the lock."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
"""The folder of the store's file, if the folder exists: no run loses power, and with a disk the runs take minutes."""
_BETWEEN_RUNS_S = 1000.0
"""After this time every lease of the last run has expired in the store."""


class LockWay(Enum):
    """How an agent asks the store for two things."""

    ONE_BY_ONE = "locks, one after the other"
    IN_ORDER = "locks, one after the other, in one order for all"
    TOGETHER = "leases, all or none"


@dataclass(frozen=True, slots=True)
class Dinner:
    """The result of a run."""

    deadlocked: bool
    """Whether at any time each agent held one thing and waited for the next."""
    is_stuck: bool
    """Whether the run ends in a deadlock."""
    used: int
    """How often an agent had both things."""


@dataclass(slots=True)
class _Diner:
    """An agent: needs the things `number` and `number + 1`, modulo AGENTS."""

    number: int
    held: set[int] = field(default_factory=set)
    is_eating: bool = False

    @property
    def things(self) -> tuple[int, int]:
        return self.number, (self.number + 1) % AGENTS

    @property
    def other(self) -> int:
        """The missing thing of an agent that holds a thing."""
        left, right = self.things
        return right if left in self.held else left

    def takes(self, thing: int) -> None:
        """Take a thing; an agent with both things eats at once."""
        self.held.add(thing)
        self.is_eating = len(self.held) == len(self.things)


class _Table:
    """The agents of a run, with the counts that all ways share."""

    def __init__(self) -> None:
        self.diners = [_Diner(number) for number in range(AGENTS)]
        self._used = 0
        self._deadlocked = False

    def begin(self) -> list[_Diner]:
        """Begin a round: agents that have eaten put both things down. Returns the other agents, which want things."""
        hungry = [diner for diner in self.diners if not diner.is_eating]
        for diner in self.diners:
            if diner.is_eating:
                diner.held.clear()
                diner.is_eating = False
        return hungry

    def end(self) -> None:
        """End a round."""
        self._used += sum(diner.is_eating for diner in self.diners)
        self._deadlocked = self._deadlocked or self.is_circle

    @property
    def is_circle(self) -> bool:
        return all(len(diner.held) == 1 for diner in self.diners)

    @property
    def dinner(self) -> Dinner:
        return Dinner(self._deadlocked, self.is_circle, self._used)


def talked(rng: random.Random, *, alike: float, kept: float) -> Dinner:
    """A run of agents that talk before each round, and take and put down things freely.

    Each agent announces a thing to take. A draw decides between two agents that want the same thing. If each agent
    would then hold a single thing, all agree that an agent, another in each round, puts down its thing and takes none.
    With the probability `kept` that agent does so, else follows the first plan: models do not always keep their word.
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
    """The thing that the agent would take now; None: nothing is free for the agent."""
    order = [diner.other] if diner.held else _left_first(diner, alike, rng)
    return next((thing for thing in order if thing in free), None)


def _left_first(diner: _Diner, alike: float, rng: random.Random) -> Sequence[int]:
    """The two things of the agent, in the order of preference."""
    return diner.things if rng.random() < alike else diner.things[::-1]


def locked(rng: random.Random, store: LeaseStore, begins_at: float, way: LockWay, *, alike: float) -> Dinner:
    """A run of agents that ask the store, and wait in the store's queue for things that others hold."""
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
    """Runs of agents that talk, a run for each seed from 0."""
    return [talked(random.Random(f"talk {seed}"), alike=alike, kept=kept) for seed in range(runs)]


def locks(runs: int, way: LockWay, *, alike: float) -> list[Dinner]:
    """Runs of agents that ask a store of their own, a run for each seed from 0. Blocks: writes a file."""
    memory = _MEMORY if _MEMORY.is_dir() else None
    with (
        TemporaryDirectory(prefix="hivemind-papers-", dir=memory) as folder,
        SqliteLeases(Path(folder) / "leases.db") as store,
    ):
        return [
            locked(random.Random(f"lock {seed}"), store, (seed + 1) * _BETWEEN_RUNS_S, way, alike=alike)
            for seed in range(runs)
        ]
