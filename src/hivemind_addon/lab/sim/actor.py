"""The agents' side of the simulated world: who asks, what it has said so far, and what it expects."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from hivemind_addon.api.spend import Price, Spend
from hivemind_addon.api.ticket import PoolKey
from hivemind_addon.lab.sim.prompt_cache import Prefix
from hivemind_addon.lab.sim.upstream import SimUpstream, usual_price
from hivemind_addon.lab.sim.workload import Crowd, PlannedTurn, ScriptedCall, prefixes_of


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
    retry: int = 0
    marked: int = 0
    """Tokens of the last answered prompt."""
    said: int = 0
    """Tokens of the conversation so far, answers included, without what the crowd shares."""
    path_s: float = 0.0
    turns_s: list[tuple[float, float]] = field(default_factory=list)
    """Think and service time of the turns that were answered."""
    output_mean: float | None = None
    output_deviation: float = 0.0
    ended_at: float | None = None
    death: str | None = None
    waits_s: list[float] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)
    billed: Spend = field(default_factory=Spend)
    in_vain: Spend = field(default_factory=Spend)
    """Of it, for attempts that gave no answer."""

    @property
    def pool(self) -> PoolKey:
        """Where its calls wait."""
        return self.upstream.pool_of(self.crowd.model)

    @property
    def prompt_tokens(self) -> int:
        """Of the present turn's request, all of it."""
        assert self.turn is not None
        return self.crowd.shared_tokens + self.said + self.turn.prompt_tokens

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """What the present request marks for the prompt cache."""
        return prefixes_of(self.crowd, self.name, self.number, prompt_tokens=self.prompt_tokens, marked=self.marked)

    @property
    def price(self) -> Price | None:
        """Of its model."""
        return usual_price()

    @property
    def likely_output_tokens(self) -> int:
        """Guessed as `proxy/wire/estimate.py` does: rarely exceeded."""
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


@dataclass(slots=True, eq=False)
class ScriptedActor(Actor):
    """One scripted call: an agent of one turn, that comes after others."""

    call: ScriptedCall = field(kw_only=True)
    waits_for: int = 0
    """Calls that have to be over before it."""
    followers: list["ScriptedActor"] = field(default_factory=list)
    asked_at: float | None = None
    faults_met: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Of the call, as its script says."""
        return self.call.turn.prompt_tokens

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

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """What the call marks, as its script says."""
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
