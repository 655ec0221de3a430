"""Who decides when a call goes: the scheduler, what others do, or nobody."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Refused, Shed, Verdict
from hivemind_addon.kernel.values.events import SchedulerEvent
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Hints, Ticket
from hivemind_addon.sim.ablation import AblatedScheduler, Primitive
from hivemind_addon.sim.aimd_pause import aimd_pause

_SDK_RETRIES = 2
_ALL = frozenset(Primitive)
_WITHOUT, _ONLY = "hivemind-without-", "only-"


class Admission(Protocol):
    """A scheduler's interface for the driver; see kernel/scheduler.py."""

    @property
    def is_idle(self) -> bool: ...  # noqa: D102

    def submit(self, ticket: Ticket, settings: PoolSettings, now: float) -> None: ...  # noqa: D102

    def poll(self, now: float) -> Sequence[Admitted | Shed | Refused]: ...  # noqa: D102

    def next_wakeup(self) -> float | None: ...  # noqa: D102

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None: ...  # noqa: D102

    def settle(self, attempt: Attempt, result: AttemptResult, now: float) -> Verdict: ...  # noqa: D102

    def cancel(self, ticket_id: str, now: float) -> bool: ...  # noqa: D102

    def drain_events(self) -> Sequence[SchedulerEvent]: ...  # noqa: D102


class UnknownPolicy(Exception):
    """No policy has this name. Its text names those that there are."""


@dataclass(frozen=True)
class Policy:
    """One of them. Two with the same name are the same."""

    name: str
    about: str
    admission: Callable[[random.Random], Admission] | None = None
    """Makes who admits the calls of one run; None: agents go straight to the provider."""
    resends: int | None = None
    """Of each client for itself; None: as the scenario's agents do."""
    watches: bool = True
    """Whether it closes streamed attempts that are silent for too long, as the proxy does."""
    reaps_after_s: float | None = None
    """Of silence, after which it closes any attempt, unless the scenario says another time; None: as `watches` says."""

    HIVEMIND: ClassVar["Policy"]
    FIFO: ClassVar["Policy"]
    DIRECT: ClassVar["Policy"]
    SDK: ClassVar["Policy"]
    AIMD_PAUSE: ClassVar["Policy"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<Policy {self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], "Policy"], tuple[str]]:
        """By its name, into another process."""
        return policy_named, (self.name,)

    @property
    def is_scheduled(self) -> bool:
        """Whether somebody admits calls."""
        return self.admission is not None


def without(*primitives: Primitive) -> Policy:
    """The scheduler without these."""
    return _ablated(frozenset(primitives), _WITHOUT, primitives)


def only(*primitives: Primitive) -> Policy:
    """The scheduler with these alone; with none of them it lets everybody pass as they come."""
    return _ablated(_ALL - frozenset(primitives), _ONLY, primitives)


def _ablated(missing: frozenset[Primitive], prefix: str, named: Sequence[Primitive]) -> Policy:
    names = "+".join(primitive.value for primitive in Primitive if primitive in named) or "nothing"
    words = names.replace("+", ", ")
    return Policy(
        f"{prefix}{names}",
        f"the scheduler without {words}" if prefix == _WITHOUT else f"of the scheduler {words} alone",
        lambda rng: AblatedScheduler(rng=rng, without=missing),
        watches=Primitive.WATCHDOG not in missing,
    )


Policy.HIVEMIND = Policy("hivemind", "the scheduler", lambda rng: Scheduler(rng=rng))
Policy.FIFO = Policy(
    "fifo",
    "the scheduler, first come first served: the same limits, no order but arrival",
    without(Primitive.ORDER, Primitive.CACHE).admission,
)
Policy.DIRECT = Policy("direct", "nobody: each call goes at once, and the first failure is its agent's end", resends=0)
Policy.SDK = Policy("sdk-retry", "each agent for itself, with the two re-sends of the SDKs", resends=_SDK_RETRIES)
Policy.AIMD_PAUSE = Policy(
    "aimd-pause",
    "as the field does: AIMD on concurrency, a pause after a 429, three re-sends",
    aimd_pause,
    watches=False,
)

COMPARED = (Policy.DIRECT, Policy.SDK, Policy.AIMD_PAUSE, Policy.FIFO, Policy.HIVEMIND)
"""What is compared on every scenario, from the least to the most."""


def policy_named(name: str) -> Policy:
    """A policy by its name. Raises UnknownPolicy."""
    for policy in COMPARED:
        if policy.name == name:
            return policy
    for prefix, make in ((_WITHOUT, without), (_ONLY, only)):
        if name.startswith(prefix):
            return make(*_primitives(name.removeprefix(prefix)))
    names = ", ".join(policy.name for policy in COMPARED)
    raise UnknownPolicy(f"no policy {name!r}; there are {names}, {_WITHOUT}X and {_ONLY}X (X: {_known()})")


def _primitives(names: str) -> Iterator[Primitive]:
    for name in [] if names == "nothing" else names.split("+"):
        try:
            yield Primitive(name)
        except ValueError:
            raise UnknownPolicy(f"no primitive {name!r}; there are {_known()}, and A+B for two of them") from None


def _known() -> str:
    return ", ".join(primitive.value for primitive in Primitive)
