"""Both sides of the simulated world: sites at work and what was taken from them; agents, and what they expect."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import msgspec.structs

from hivemind_addon.formats.profile.load import load_profiles, model_group
from hivemind_addon.formats.profile.model import InputCharge, OutputCharge, Profile
from hivemind_addon.kernel.budget import spend_of
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.spend import Price, Spend
from hivemind_addon.kernel.values.ticket import Attempt, Demand, Dimension, Hints, PoolKey, Usage
from hivemind_addon.sim.call import SimAnswer, SimRequestFacts
from hivemind_addon.sim.dialect import Reply
from hivemind_addon.sim.faults import ErrorStatus
from hivemind_addon.sim.idle import IdleMeter, KnownRequest
from hivemind_addon.sim.limits import Prefix
from hivemind_addon.sim.provider import SimProvider
from hivemind_addon.sim.workload import DEFAULT_MODEL, Crowd, PlannedTurn, ScriptedCall, Site, prefixes_of

WALL_S = 1_800_000_000.0
"""Seconds since the epoch at the beginning of every run."""
PRICED_AS = "claude-sonnet-4-5"
USUAL_PRICE = Price(input=3_000_000, cache_write=3_750_000, cache_read=300_000, output=15_000_000)
"""Its price, which every simulated token has, whoever the provider is."""


@cache
def _profile(name: str) -> Profile:
    return load_profiles(None).by_name[name]


def bill_of(reply: Reply, *, output_tokens: int, price: Price | None) -> Spend:
    """What an answer costs of which so much was generated. `price` None: only its tokens count."""
    usage = Usage(
        input_tokens=reply.input_tokens,
        cache_write_tokens=reply.written_tokens,
        cache_read_tokens=reply.cached_tokens,
        output_tokens=output_tokens,
    )
    return spend_of(usage, price)


@dataclass(slots=True)
class Taken:
    """What one model's calls took."""

    units: Counter[Dimension] = field(default_factory=Counter)
    """What the turns that were done take at least of each limit."""
    waste: Counter[Dimension] = field(default_factory=Counter)
    """What attempts took that failed and were charged all the same, as those do that end without a head."""
    service_s: float = 0.0


class SimUpstream:
    """A site at work: its provider, how its answers are read, and what was taken from it."""

    def __init__(self, site: Site, rng: random.Random, settings: PoolSettings | None) -> None:
        """`settings`: of the scheduler's pool, in place of the profile's."""
        self.pool = site.pool
        self.dialect = site.dialect
        self.provider = SimProvider(site.provider, rng, wall_offset_s=WALL_S)
        self.settings = self.provider.settings
        self.profile = _profile(site.profile)
        coarse_tokens = max((meter.granularity for meter in self.profile.meters), default=0)
        self.idle = IdleMeter(self.provider, coarse_tokens=round(coarse_tokens))
        self.pool_settings = settings or self.profile.pool_settings
        self.taken: defaultdict[str, Taken] = defaultdict(Taken)
        """By model."""
        self.late_tokens = 0

    def pool_of(self, model: str) -> PoolKey:
        """Where its profile puts a model's calls."""
        if model == DEFAULT_MODEL:
            return self.pool
        return msgspec.structs.replace(self.pool, model_group=model_group(self.profile, model))

    def charged(self, usage: Usage, reserved: Demand) -> Demand:
        """What the limits count of an attempt with this usage."""
        charge = self.profile.charge
        into = usage.total_input_tokens
        if charge.input is InputCharge.UNCACHED:
            into -= usage.cache_read_tokens
        out = usage.output_tokens if charge.output is OutputCharge.ACTUAL else reserved.output_tokens
        return Demand(input_tokens=into, output_tokens=out, total_tokens=into + out)


@dataclass(slots=True, eq=False)
class Actor:
    """One agent: a conversation, turn by turn."""

    index: int
    name: str
    session: str
    crowd: Crowd
    upstream: SimUpstream
    turns: Iterator[PlannedTurn]
    jitter: random.Random
    turn: PlannedTurn | None = None
    number: int = 0
    """Of the turn, from 1."""
    starts_s: float = 0.0
    """When it begins; with hours, after each opening."""
    is_new: bool = True
    """Its next turn begins a conversation."""
    asked_at: float | None = None
    """When its present turn was first asked for; None: not yet."""
    awaited: int = 0
    """Calls of the present turn that are not over."""
    calls: "list[SimCall]" = field(default_factory=list)
    """Of them, those that are asked for."""
    served_s: list[float] = field(default_factory=list)
    """Service times of the present turn's calls that were answered."""
    attempts: int = 0
    wanted: int = 0
    """Calls that it has asked for, each once however often it was sent."""
    marked: int = 0
    """Tokens of the last answered prompt."""
    said: int = 0
    """Tokens of the conversation so far, answers included, without what the crowd shares."""
    path_s: float = 0.0
    turns_s: list[tuple[float, float]] = field(default_factory=list)
    """Think and service time of the calls that were answered. Of several calls of one turn the longest is the first;
    the think time of the others is negative, so that they end with that."""
    output_mean: float | None = None
    output_deviation: float = 0.0
    ended_at: float | None = None
    death: str | None = None
    is_stopped: bool = False
    """Its own budget was spent: it has ended, and neither finished nor died."""
    latencies_s: list[float] = field(default_factory=list)
    """Of the calls that were answered: from when each was first asked for until its answer was whole."""
    waits_s: list[float] = field(default_factory=list)
    """Of the calls that are over: how long each waited for the scheduler, all its waits together."""
    answered_at: list[float] = field(default_factory=list)
    billed: Spend = field(default_factory=Spend)
    in_vain: Spend = field(default_factory=Spend)
    """Of it, for attempts that gave no answer."""

    @property
    def pool(self) -> PoolKey:
        """Where its calls wait."""
        return self.upstream.pool_of(self.crowd.model)

    @property
    def holder(self) -> str:
        """The agent that its calls are counted as: who has the share, and the budget."""
        return self.crowd.parent_session or self.session

    def prompt_tokens(self, turn: PlannedTurn) -> int:
        """Of the request of one call of the present turn, all of it."""
        return self.crowd.shared_tokens + self.said + turn.prompt_tokens

    def prefixes(self, turn: PlannedTurn) -> tuple[Prefix, ...]:
        """What that request marks for the prompt cache; only the turn's first call marks its own end."""
        tokens = self.prompt_tokens(turn)
        marks = prefixes_of(self.crowd, self.name, self.number, prompt_tokens=tokens, marked=self.marked)
        return marks if turn is self.turn else marks[:-1]

    @property
    def price(self) -> Price | None:
        """Of its model."""
        return USUAL_PRICE

    @property
    def likely_output_tokens(self) -> int:
        """Guessed as `formats/wire/estimate.py` does: rarely exceeded."""
        if self.output_mean is None:
            return self.upstream.profile.charge.default_output_tokens
        return round(self.output_mean + 2 * self.output_deviation)

    def learn(self, output_tokens: int) -> None:
        """An answer had so many."""
        if self.output_mean is None:
            self.output_mean, self.output_deviation = output_tokens, output_tokens / 2
        else:
            self.output_deviation += 0.2 * (abs(output_tokens - self.output_mean) - self.output_deviation)
            self.output_mean += 0.2 * (output_tokens - self.output_mean)

    def book_turn(self) -> None:
        """The present turn is over, or its agent has ended: what was answered of it belongs to the agent's path."""
        if self.turn is None or not self.served_s:
            return
        longest_s, *others_s = sorted(self.served_s, reverse=True)
        self.turns_s += [(self.turn.think_s, longest_s), *((-other_s, other_s) for other_s in others_s)]
        self.path_s += self.turn.think_s + longest_s
        self.served_s = []

    def remember(self) -> None:
        """The present turn is over: the conversation has grown by all of it that was not refused for good."""
        assert self.turn is not None
        if not self.turn.is_refused:
            self.marked = self.prompt_tokens(self.turn)
        for turn in (self.turn, *self.turn.beside):
            self.said += 0 if turn.is_refused else turn.prompt_tokens + turn.output_tokens


@dataclass(slots=True, eq=False)
class ScriptedActor(Actor):
    """One scripted call: an agent of one turn, that comes after others."""

    call: ScriptedCall = field(kw_only=True)
    waits_for: int = 0
    """Calls that have to be over before it."""
    followers: list["ScriptedActor"] = field(default_factory=list)
    faults_met: int = 0

    def prompt_tokens(self, turn: PlannedTurn) -> int:
        """Of the call, as its script says."""
        return turn.prompt_tokens

    @property
    def latency_s(self) -> float:
        """Of the next attempt that the limits let through."""
        turn = self.call.turn
        if self.faults_met < len(self.call.faults):
            return self.call.faults[self.faults_met].after_s
        return turn.latency_s if self.crowd.streamed else turn.service_s

    @property
    def price(self) -> Price | None:
        """Of the model that it asks for; None: it is not known."""
        return self.call.ticket.price

    def prefixes(self, turn: PlannedTurn) -> tuple[Prefix, ...]:
        """What the call marks, as its script says."""
        del turn
        return self.call.prefixes

    @classmethod
    def of(cls, index: int, call: ScriptedCall, upstream: SimUpstream, jitter: random.Random) -> "ScriptedActor":
        """A call that nobody has asked for yet."""
        ticket, turn = call.ticket, call.turn
        generated = max(1, turn.output_tokens - 1)
        crowd = Crowd(
            ticket.agent,
            1,
            tokens_per_s=generated / turn.generation_s if turn.generation_s else math.inf,
            caches=bool(call.prefixes),
            streamed=ticket.streamed,
            timeout_s=ticket.deadline_at,
            retries=call.retries,
        )
        marked = call.prefixes[-2].tokens if len(call.prefixes) > 1 else 0
        return cls(
            index=index,
            name=ticket.id,
            session=ticket.session,
            crowd=crowd,
            upstream=upstream,
            turns=iter(()),
            jitter=jitter,
            turn=turn,
            number=1,
            marked=marked,
            waits_for=len(call.after),
            call=call,
        )


@dataclass(slots=True, eq=False)
class SimCall:
    """One request of an agent, as its client sends it; what the client sends again is another one."""

    id: str
    agent: Actor
    turn: PlannedTurn
    retry: int
    """How often the client has sent the same before."""
    upstream: SimUpstream
    """Whose pool holds the call, or where it was sent."""
    over: bool = False
    has_begun: bool = False
    """The answer streams: the client's patience starts anew with each byte."""
    attempt: "SimAttempt | None" = None
    kept: KnownRequest | None = None
    """The request and its reserved units, for the measure of idle time; None: no scheduler has the call."""
    waits_since: float = 0.0
    waited_s: float = 0.0
    """In the waits that are over."""

    def request(self) -> SimRequestFacts:
        """What the provider gets."""
        agent, turn, crowd = self.agent, self.turn, self.agent.crowd
        max_tokens = crowd.max_tokens
        # A plain answer takes as long as the stream would have.
        latency_s = turn.latency_s if crowd.streamed else turn.service_s
        if isinstance(agent, ScriptedActor):
            max_tokens, latency_s = agent.call.max_tokens, agent.latency_s
        unfit = None
        if turn.is_refused and (refused := crowd.refused):
            unfit = ErrorStatus(refused.status, message=refused.words)
        return SimRequestFacts(
            dialect=agent.upstream.dialect,
            credential=f"sk-sim-{agent.name}",
            model=crowd.model,
            stream=crowd.streamed,
            input_tokens=agent.prompt_tokens(turn),
            max_tokens=max_tokens or turn.output_tokens + 1,
            chunks=turn.output_tokens,
            interval_s=1 / crowd.tokens_per_s if crowd.streamed else 0.0,
            latency_s=latency_s,
            unfit=unfit,
            prefixes=agent.prefixes(turn),
        )


@dataclass(slots=True, eq=False)
class SimAttempt:
    """One attempt of a call."""

    call: SimCall
    sent: Attempt | None
    """None: the attempt goes past the scheduler."""
    upstream: SimUpstream = field(init=False)
    """Whose provider gets the attempt."""
    over: bool = False
    answer: SimAnswer | None = None
    arrived_at: float = 0.0
    """At the provider."""
    hints: Hints = field(default_factory=Hints)
    is_open: bool = False
    """At the provider."""
    is_paid: bool = False
    """The provider has completed it."""

    def __post_init__(self) -> None:
        self.upstream = self.call.upstream


@dataclass(frozen=True, slots=True)
class SdkBackoff:
    """How long a client waits before it sends again what failed: as the providers' SDKs do."""

    first_s: float = 0.5
    """Doubles from one re-send to the next."""
    max_s: float = 8.0
    retry_after_max_s: float = 60.0
    """A longer retry-after is not obeyed."""

    def wait_s(self, retry: int, retry_after_s: float | None, rng: random.Random) -> float:
        """Before re-send number `retry`, counted from 0."""
        if retry_after_s is not None and 0 < retry_after_s <= self.retry_after_max_s:
            return retry_after_s
        return min(self.first_s * 2.0**retry, self.max_s) * (1 - 0.25 * rng.random())
