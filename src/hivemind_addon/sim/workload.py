"""Simulated load as frozen values: crowds of agents, and scenarios that put them before one provider. Pure.

What an agent wants (sizes, think times, latencies) comes from the run's seed and its own name alone: two runs of one
seed want the same, however they are scheduled.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hivemind_addon.kernel.limits.learned import LearnedPool
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.ticket import PoolKey, Priority, Ticket
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import Fault
from hivemind_addon.sim.limits import LimitKind, Prefix
from hivemind_addon.sim.provider import ProviderSettings

DEFAULT_MODEL = "sim-1"
"""Of crowds that name none."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Agents of one kind. Pairs are the ends of a range."""

    name: str
    agents: int
    """Conversations that run beside each other."""
    turns: int | None = None
    """Of each; None: until the scenario's time is over."""
    per_session: int = 1
    """So many of them belong to one session of one agent."""
    parent_session: str = ""
    """Whose sub-agents they are."""
    starts_s: tuple[float, float] = (0, 0)
    """When each begins."""
    think_s: tuple[float, float] = (0.1, 0.5)
    """Before each turn: a tool runs, or a person reads."""
    latency_s: float = 0.1
    """Median until an answer begins."""
    latency_sigma: float = 0.2
    """Of its logarithm."""
    spike_rate: float = 0
    """Share of the turns whose latency is `spike_factor` times as long."""
    spike_factor: float = 5
    output_tokens: tuple[int, int] = (50, 50)
    tokens_per_s: float = math.inf
    """How fast an answer is generated."""
    shared_tokens: int = 0
    """Of the instructions that all of the crowd have in common."""
    opening_tokens: tuple[int, int] = (500, 500)
    """An agent's own instructions and task."""
    prompt_tokens: tuple[int, int] = (100, 100)
    """Each turn's new text."""
    remembers: bool = True
    """Each turn sends the whole conversation again; False: every turn stands alone."""
    caches: bool = False
    """Marks its prompts for the provider's prompt cache."""
    streamed: bool = False
    timeout_s: float = 120
    """How long an agent waits for an answer, or for a stream to begin."""
    announces_timeout: bool = True
    """false: nobody is told of it, and its profile's default counts; its user agent is the crowd's name."""
    retries: int = 0
    """Re-sends of one turn that failed; 0: the first failure is the agent's end."""
    poisoned: bool = False
    """Every call of theirs fails."""
    poisoned_status: int = 500
    """With this error, which tells no instant to come back."""
    priority: Priority = Priority.NORMAL
    """The class of its calls."""
    budget_tokens: int | None = None
    """What each agent of it may spend, input and output together; None: any number. Whom it stops is not lost."""
    model: str = DEFAULT_MODEL
    """What it asks for; the profile's groups of models say which pool that is."""
    site: str = ""
    """Name of the one of the scenario's sites that serves them; empty: its own provider."""

    @property
    def usual_service_s(self) -> float:
        """How long the provider usually needs for a turn: its median latency, and the mean of its output."""
        return self.latency_s + (sum(self.output_tokens) / 2 - 1) / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One step of one agent, decided beforehand."""

    think_s: float
    latency_s: float
    generation_s: float
    """From the answer's beginning to its end."""
    prompt_tokens: int
    """New text; the opening is the first turn's, in addition."""
    output_tokens: int

    @property
    def service_s(self) -> float:
        """How long the provider needs for it when nothing goes wrong."""
        return self.latency_s + self.generation_s


def turns(crowd: Crowd, rng: random.Random) -> Iterator[PlannedTurn]:
    """One agent's turns; endless where the crowd's are."""
    number = 0
    while crowd.turns is None or number < crowd.turns:
        number += 1
        latency_s = rng.lognormvariate(math.log(crowd.latency_s), crowd.latency_sigma)
        if rng.random() < crowd.spike_rate:
            latency_s *= crowd.spike_factor
        output_tokens = rng.randint(*crowd.output_tokens)
        yield PlannedTurn(
            think_s=rng.uniform(*crowd.think_s),
            latency_s=latency_s,
            generation_s=(output_tokens - 1) / crowd.tokens_per_s,
            prompt_tokens=rng.randint(*crowd.prompt_tokens),
            output_tokens=output_tokens,
        )


def prefixes_of(crowd: Crowd, name: str, number: int, *, prompt_tokens: int, marked: int) -> tuple[Prefix, ...]:
    """What an agent's turn marks for the prompt cache, shortest first. `marked`: tokens of its last answered prompt."""
    if not crowd.caches:
        return ()
    shared = Prefix(crowd.name, crowd.shared_tokens)
    last = Prefix(f"{name} {number - 1}", marked)
    return (*(one for one in (shared, last) if one.tokens), Prefix(f"{name} {number}", prompt_tokens))


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """What one attempt meets, and when."""

    fault: Fault
    after_s: float
    """Until its head, or until it ends without one."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One call of an agent of which everything is decided beforehand; `turn.prompt_tokens` is all of its input."""

    ticket: Ticket
    """As it asks; its instants count from its arrival, and its pool is its site's. Its id is the call's name."""
    turn: PlannedTurn
    """`think_s` counts from the end of the last of `after`; of none, from the run's begin."""
    after: tuple[str, ...] = ()
    """Ids of the calls that have to be over before it."""
    prefixes: tuple[Prefix, ...] = ()
    """What it marks for the provider's prompt cache, shortest first."""
    max_tokens: int | None = None
    """Of output; None: as much as the turn has."""
    faults: tuple[ScriptedFault, ...] = ()
    """What its first attempts meet that the limits let through."""
    retries: int = 0
    """Re-sends by its client, where it failed."""
    is_vital: bool = True
    """Its failure is the end of whatever comes after it."""


@dataclass(frozen=True, slots=True)
class Site:
    """A provider beside the scenario's own, with limits of its own."""

    name: str
    pool: PoolKey
    provider: ProviderSettings
    profile: str = "anthropic"
    """Name of the packaged profile that reads its answers."""
    dialect: SimDialect = SimDialect.MESSAGES
    equal: bool = False
    """Whether the calls of the scenario's own provider may go to it as well, whichever takes them soonest."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Somebody else who spends the same limits, by a key of the same account; never waits, never comes back."""

    calls_per_s: float
    """Offered, at random instants."""
    input_tokens: int = 100
    latency_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load before a provider."""

    name: str
    crowds: tuple[Crowd, ...]
    provider: ProviderSettings
    duration_s: float = math.inf
    """When the run is cut; infinite: it ends when all agents have."""
    caps: tuple[tuple[float, int], ...] = ()
    """Instants at which the concurrency cap moves, and where to."""
    neighbour: Neighbour | None = None
    way_s: float = 0.01
    """From the proxy to the provider, and back."""
    way_jitter_s: float = 0
    """Up to so much longer, by chance, an attempt is on its way to the provider."""
    input_error: float = 0
    """Sigma of the logarithm of estimated ÷ real input. Output is guessed from the agent's last answers."""
    sites: tuple[Site, ...] = ()
    """Providers beside `provider`."""
    scheduler: PoolSettings | None = None
    """What a profile would say about its pools; None: what the packaged ones say."""
    silent_s: float | None = None
    """How long an attempt may be silent, as profiles say it in `watchdog`; None: what the packaged ones say."""
    script: tuple[ScriptedCall, ...] = ()
    """Calls of agents that belong to no crowd; each comes behind the ones that it follows."""

    learned: tuple[LearnedPool, ...] = ()
    """What the scheduler knows as the run begins."""

    def on(self, kind: LimitKind) -> "Scenario":
        """The same with limits of this kind."""
        sites = tuple(replace(site, provider=_on(site.provider, kind)) for site in self.sites)
        return replace(self, provider=_on(self.provider, kind), sites=sites)

    def without_headers(self) -> "Scenario":
        """The same, and the provider says nothing about its limits but a refusal's retry-after."""
        sites = tuple(replace(site, provider=replace(site.provider, rate_limit_headers=False)) for site in self.sites)
        return replace(self, provider=replace(self.provider, rate_limit_headers=False), sites=sites)


def _on(provider: ProviderSettings, kind: LimitKind) -> ProviderSettings:
    return replace(provider, limits=tuple(limit.on(kind) for limit in provider.limits))
