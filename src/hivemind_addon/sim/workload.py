"""Simulated load as frozen values: crowds of agents, and scenarios that put them before one provider. Pure.

The sizes, think times and latencies of an agent come from the seed of the run and the agent's name alone: two runs of
the same seed want the same, however they are scheduled.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from hivemind_addon.kernel.limits.learned import LearnedPool
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.ticket import PoolKey, Priority, Ticket
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import Fault
from hivemind_addon.sim.limits import LimitKind, Prefix
from hivemind_addon.sim.provider import ProviderSettings

DEFAULT_MODEL = "sim-1"
"""The model of crowds that name no model."""
DAY_S = 86_400.0
NOWHERE = PoolKey("", "", "")
"""The pool of sites that have no name yet."""


def drawn(values: Sequence[int], rng: random.Random) -> int:
    """A number by chance: of a single value that value, of two any between them, of more any of them."""
    match values:
        case [value]:
            return value
        case [low, high]:
            return rng.randint(low, high)
    return rng.choice(values)


def drawn_s(values: Sequence[float], rng: random.Random) -> float:
    """The same of seconds."""
    match values:
        case [value]:
            return value
        case [low, high]:
            return rng.uniform(low, high)
    return rng.choice(values)


@dataclass(frozen=True, slots=True)
class RefusedForGood:
    """Requests that the provider refuses whenever they come, and whatever its limits allow."""

    share: float = 1
    """Share of the crowd's requests; at 1 the crowd counts in no figure."""
    status: int = 400
    """The HTTP status."""
    words: str = "this request cannot be served"
    """The message of the error."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Agents of the same kind. A list with a single value means that value, with two values the ends of a range, with
    more values any of them, by chance.
    """

    name: str
    """The agents are NAME-0, NAME-1 …"""
    agents: int
    """Conversations that run beside each other."""
    turns: int | None = None
    """Of each conversation; None: until the scenario's time is over."""
    per_session: int = 1
    """So many conversations belong to one session of one agent."""
    parent_session: str = ""
    """The session that started the agents of this crowd, as sub-agents; empty: nobody did."""
    starts_s: tuple[float, ...] = (0, 0)
    """Seconds from the begin of the run to that of each conversation; with `hours`, from each opening."""
    hours: tuple[float, float] | None = None
    """The hours of each day, from the first to the second, in which the agents begin turns; the run begins at midnight.
    At each opening every agent begins a new conversation. [22, 30] ends at six. None: all hours, one conversation."""
    think_s: tuple[float, ...] = (0.1, 0.5)
    """Seconds before each turn: a tool runs, or a person reads."""
    calls_per_turn: tuple[int, ...] = (1,)
    """Calls that an agent sends at once; the turn is over with the last answer."""
    latency_s: float = 0.1
    """Median of the seconds until an answer begins."""
    latency_sigma: float = 0.2
    """Standard deviation of the logarithm of the latency."""
    spike_rate: float = 0
    """Share of the calls whose latency is `spike_factor` times as long."""
    spike_factor: float = 5
    """See `spike_rate`."""
    output_tokens: tuple[int, ...] = (50, 50)
    """Tokens of each answer."""
    max_tokens: int | None = None
    """The maximum of output that each request names; None: a token more than the answer has."""
    tokens_per_s: float = math.inf
    """Tokens of an answer that are generated in a second."""
    shared_tokens: int = 0
    """Tokens of the instructions that all of the crowd have in common."""
    opening_tokens: tuple[int, ...] = (500, 500)
    """Tokens of an agent's own instructions and task, at the begin of a conversation."""
    prompt_tokens: tuple[int, ...] = (100, 100)
    """Tokens of the new text of each call."""
    remembers: bool = True
    """Each turn sends the whole conversation again; False: every turn stands alone."""
    caches: bool = False
    """Whether the agents mark their prompts for the provider's prompt cache."""
    streamed: bool = False
    """Whether answers are streams."""
    timeout_s: float = 120
    """Seconds that an agent waits for an answer, or for a stream to begin."""
    announces_timeout: bool = True
    """false: requests do not state the timeout, and the default of the profile counts; the user agent is the crowd's
    name."""
    retries: int = 0
    """Re-sends of a call that failed; 0: the first failure is the agent's end."""
    refused: RefusedForGood | None = None
    """The requests that are refused for good. The agent goes on with the next turn after such a refusal."""
    priority: Priority = Priority.NORMAL
    """The class of the calls."""
    budget_tokens: int | None = None
    """Tokens that each agent may spend, input and output together; None: any number. An agent that the budget stops is
    not lost."""
    model: str = DEFAULT_MODEL
    """The model that requests name; the groups of models in the profile say which pool that is."""
    site: str = ""
    """Name of the other provider that serves the crowd; empty: the first one."""

    @property
    def usual_service_s(self) -> float:
        """Seconds that the provider usually needs for a call: the median latency, and the mean of the output."""
        return self.latency_s + (sum(self.output_tokens) / len(self.output_tokens) - 1) / self.tokens_per_s

    @property
    def is_refused(self) -> bool:
        """Whether no request of the crowd can be answered."""
        return self.refused is not None and self.refused.share >= 1

    def works_at(self, instant: float, *, is_done: bool = False) -> float:
        """The first instant in the hours from this one on; `is_done`: in hours that have not begun. Infinite: never."""
        if self.hours is None:
            return math.inf if is_done else instant
        opens_s, ends_s = (hour * 3600 for hour in self.hours)
        day, since_s = divmod(instant - opens_s, DAY_S)
        return instant if since_s < ends_s - opens_s and not is_done else (day + 1) * DAY_S + opens_s


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One call of one agent, decided beforehand, and those beside it."""

    think_s: float
    latency_s: float
    generation_s: float
    """Seconds from the answer's beginning to the end."""
    prompt_tokens: int
    """New text; the opening is the first turn's, in addition."""
    output_tokens: int
    is_refused: bool = False
    """For good."""
    beside: tuple["PlannedTurn", ...] = ()
    """Further calls that the agent sends at the same time."""

    @property
    def service_s(self) -> float:
        """Seconds that the provider needs for the call when nothing goes wrong."""
        return self.latency_s + self.generation_s


def turns(crowd: Crowd, rng: random.Random) -> Iterator[PlannedTurn]:
    """The turns of one conversation; endless where the crowd's are."""
    for _ in count() if crowd.turns is None else range(crowd.turns):
        first, *others = (_planned(crowd, rng) for _ in range(drawn(crowd.calls_per_turn, rng)))
        yield replace(first, beside=tuple(others)) if others else first


def _planned(crowd: Crowd, rng: random.Random) -> PlannedTurn:
    latency_s = rng.lognormvariate(math.log(crowd.latency_s), crowd.latency_sigma)
    if rng.random() < crowd.spike_rate:
        latency_s *= crowd.spike_factor
    output_tokens = drawn(crowd.output_tokens, rng)
    return PlannedTurn(
        think_s=drawn_s(crowd.think_s, rng),
        latency_s=latency_s,
        generation_s=(output_tokens - 1) / crowd.tokens_per_s,
        prompt_tokens=drawn(crowd.prompt_tokens, rng),
        output_tokens=output_tokens,
        is_refused=crowd.refused is not None and rng.random() < crowd.refused.share,
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

    provider: ProviderSettings
    """With the keys of the first provider."""
    name: str = ""
    pool: PoolKey = NOWHERE
    profile: str = "anthropic"
    """Name of the packaged profile that reads its answers."""
    dialect: SimDialect = SimDialect.MESSAGES
    """In which its answers are written."""
    equal: bool = False
    """Whether it is a second endpoint: the calls of the scenario's own provider may go to either, whichever takes them
    soonest."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Somebody else who spends the same limits with a key of the same account, and never sends a call again."""

    calls_per_s: float
    """Calls in a second, at random instants."""
    input_tokens: int = 100
    """Tokens of each request."""
    output_tokens: int = 8
    """Tokens of each answer."""
    latency_s: float = 0.1
    """Seconds until an answer is whole: so long a call holds a slot."""
    from_s: float = 0
    """The neighbour comes so many seconds after the begin of the run,"""
    to_s: float = math.inf
    """and goes so many seconds after that begin."""
    every_s: float = math.inf
    """After so many seconds from the first coming the neighbour comes again, for as long as the first time."""
    waits: bool = False
    """true: calls wait until they fit, pass before all others, and are never refused; false: a call that does not fit
    is refused and gone."""
    site: str = ""
    """Name of the other provider whose limits the neighbour spends; empty: the first one."""

    def comes_at(self, instant: float) -> float:
        """The first instant from this one on at which the neighbour is there; infinite: gone for good."""
        begun_s = self.from_s
        if math.isfinite(self.every_s):
            begun_s += max(0.0, (instant - begun_s) // self.every_s) * self.every_s
        if instant - begun_s < self.to_s - self.from_s:
            return max(instant, begun_s)
        return begun_s + self.every_s


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load before a provider."""

    name: str
    crowds: tuple[Crowd, ...]
    """Who asks."""
    provider: ProviderSettings
    """Who answers."""
    duration_s: float = math.inf
    """When the run is cut; infinite: it ends when all agents have."""
    caps: tuple[tuple[float, int], ...] = ()
    """Instants at which the concurrency cap moves, and where to."""
    neighbours: tuple[Neighbour, ...] = ()
    """Others who use up the same limits."""
    way_s: float = 0.01
    """From the proxy to the provider, and back."""
    way_jitter_s: float = 0
    """Up to so much longer, by chance, an attempt is on its way to the provider."""
    input_error: float = 0
    """Sigma of the logarithm of estimated ÷ real input. Output is guessed from the agent's last answers."""
    sites: tuple[Site, ...] = ()
    """Providers beside `provider`."""
    scheduler: PoolSettings | None = None
    """What a profile would say about its pools; without it, what the packaged ones say."""
    silent_s: float | None = None
    """How long an attempt may be silent, as a profile says it in `watchdog`; without it, as the packaged ones say."""
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
