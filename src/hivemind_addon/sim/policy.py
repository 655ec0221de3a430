"""Policies: the scheduler, the scheduler without some mechanisms, competitors, files of users, and no scheduler."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hivemind_addon.formats.base.resources import scenarios_folder
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Refused, Shed, Verdict
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Hints, Ticket
from hivemind_addon.sim.ablation import AblatedScheduler, Primitive
from hivemind_addon.sim.policy_file import PolicyFile, UnknownPolicy

EXAMPLES = scenarios_folder().parent / "examples" / "policies"
_SDK_RETRIES = 2
_ALL = frozenset(Primitive)
_WITHOUT, _ONLY = "hivemind-without-", "only-"


class Admission(Protocol):
    """The interface of a policy: decides when the calls of one run go. The scheduler has the same interface.

    The class is called with one `random.Random`, seeded by the run's seed. All instants are seconds of the run, and
    `now` never goes back. After each event of the run the world calls `poll(now)` once, carries the decisions out in
    their order, and asks `next_wakeup()`. An event calls `submit`, `observe`, `settle` or `cancel`, or is a wakeup.

    Tickets, hints and results are frozen values (`hivemind_addon.kernel.values.ticket`), decisions and verdicts too
    (`hivemind_addon.kernel.values.decision`). Optional attributes of the class: `watches = False` turns off the closing
    of streamed attempts that are silent for too long, `reaps_after_s = 30.0` closes any attempt after so much silence.
    """

    def submit(self, ticket: Ticket, settings: PoolSettings, now: float) -> None:
        """A client sent a request, which waits from now on until `poll` decides.

        `ticket.demand`: the expected requests and tokens. `ticket.deadline_at`: the instant at which the client leaves.
        A client that comes back sends a new ticket. `settings`: of the provider's profile, for example
        `settings.concurrency.maximum` attempts in flight.
        """

    def poll(self, now: float) -> Sequence[Admitted | Shed | Refused]:
        """Decide on waiting tickets, at most once on each; all others go on waiting.

        `Admitted(Attempt(ticket, number, now))`: the request goes to the provider; `number` counts the attempts of the
        ticket from 1. `Shed(ticket, reason, come_back_s)`: the client gets a refusal that asks for a retry in so many
        seconds. `Refused(ticket, cause)`: the client gets a refusal for good.
        """

    def next_wakeup(self) -> float | None:
        """The instant, later than the last poll, of the next poll if nothing else happens; None: no need.

        If nothing else happens and there is no wakeup, the run ends, and agents that wait are lost.
        """

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None:
        """The head of an answer came: the limits that it reports, and the retry-after. Before `settle`, if at all.

        `answered` False: the head is a refusal's or a failure's (status 400 or more).
        """

    def settle(self, attempt: Attempt, result: AttemptResult, now: float) -> Verdict:
        """An attempt ended. `Finished()`, `GiveUp(reason)` or `Backoff(until, reason)`, after which the ticket waits.

        `result.outcome` is the end, `result.usage` the tokens. A success and a cancellation (the client left) are
        finished; an attempt of which the client has seen bytes cannot be tried again. `until` binds nobody: `poll`
        decides when the ticket goes.
        """

    def cancel(self, ticket_id: str, now: float) -> bool:
        """The client of a waiting ticket left: the ticket is over. Returns whether the ticket waited."""


@dataclass(frozen=True)
class Policy:
    """A policy under its name. Two with the same name are the same."""

    name: str
    about: str
    admission: Callable[[random.Random], Admission] | None = None
    """Makes the object that decides in one run; None: agents go straight to the provider."""
    resends: int | None = None
    """Re-sends of each client for itself; None: as the scenario's agents do."""
    watches: bool = True
    """Whether streamed attempts that are silent for too long are closed, as the proxy does."""
    reaps_after_s: float | None = None
    """Silence that closes any attempt, unless the scenario states another time; None: as `watches` says."""
    file: PolicyFile | None = None
    """The file of a user, with its text."""

    HIVEMIND: ClassVar["Policy"]
    FIFO: ClassVar["Policy"]
    DIRECT: ClassVar["Policy"]
    SDK: ClassVar["Policy"]
    AIMD_PAUSE: ClassVar["Policy"]
    HIVEMIND_SCHEDULER: ClassVar["Policy"]
    BASELINE: ClassVar["Policy"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<Policy {self.name}>"

    def __reduce__(self) -> tuple[Callable[..., "Policy"], tuple[object, ...]]:
        """By name into another process, and a file by its text."""
        return (policy_named, (self.name,)) if self.file is None else (_of_file, (self.file,))

    @property
    def is_scheduled(self) -> bool:
        """Whether a scheduler admits calls."""
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


def _of_file(file: PolicyFile, name: str = "") -> Policy:
    """A user's policy, or ours if there is a name."""
    return Policy(
        name or f"{file.path}:{file.class_name}",
        file.about,
        file.make,
        watches=file.watches,
        reaps_after_s=file.reaps_after_s,
        file=None if name else file,
    )


def _packaged(name: str, file: str, class_name: str) -> Policy:
    text = (EXAMPLES / file).read_text(encoding="utf-8")
    return _of_file(PolicyFile(str(EXAMPLES / file), class_name, text), name)


Policy.AIMD_PAUSE = _packaged("aimd-pause", "lanes.py", "AimdPause")
Policy.HIVEMIND_SCHEDULER = _packaged("hivemind-scheduler", "hivemind_scheduler.py", "HivemindScheduler")
Policy.BASELINE = _packaged("baseline", "baseline.py", "Baseline")

COMPARED = (Policy.DIRECT, Policy.SDK, Policy.AIMD_PAUSE, Policy.FIFO, Policy.HIVEMIND)
"""The policies that are compared on every scenario, from the least to the most."""
NAMED = (
    *COMPARED,
    Policy.HIVEMIND_SCHEDULER,
    Policy.BASELINE,
    _packaged("agentrm-fifo", "lanes.py", "AgentRmFifo"),
    _packaged("agentrm-mlfq", "lanes.py", "AgentRmMlfq"),
)
"""All policies that have a name of their own."""


def policy_named(name: str) -> Policy:
    """A policy by its name, or a user's by `FILE.py:Class`. Raises UnknownPolicy, with the cure."""
    for policy in NAMED:
        if policy.name == name:
            return policy
    for prefix, make in ((_WITHOUT, without), (_ONLY, only)):
        if name.startswith(prefix):
            return make(*_primitives(name.removeprefix(prefix)))
    if PolicyFile.is_meant(name):
        return _of_file(PolicyFile.read(name))
    names = ", ".join(policy.name for policy in NAMED)
    ablated = f"{_WITHOUT}X and {_ONLY}X (X: {_known()})"
    raise UnknownPolicy(f"no policy {name!r}; there are {names}, {ablated}, and FILE.py:Class of your own")


def _primitives(names: str) -> Iterator[Primitive]:
    for name in [] if names == "nothing" else names.split("+"):
        try:
            yield Primitive(name)
        except ValueError:
            raise UnknownPolicy(f"no primitive {name!r}; there are {_known()}, and A+B for two of them") from None


def _known() -> str:
    return ", ".join(primitive.value for primitive in Primitive)
