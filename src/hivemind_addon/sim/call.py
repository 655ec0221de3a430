"""One call to the simulated provider, as values: what is asked, what it gets, and how it ends.

What happened to all calls is counted as the provider's truth:

    attempts = refused + overloaded + failed + completed + cut + abandoned + in flight
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum

from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim import faults
from hivemind_addon.sim.dialect import Headers, Reply, SimDialect, TaskTurn
from hivemind_addon.sim.faults import OK, ErrorStatus, Fault
from hivemind_addon.sim.limits import Prefix


@dataclass(frozen=True, slots=True)
class SimRequestFacts:
    """What the model needs to know of a request."""

    dialect: SimDialect
    credential: str
    model: str = "sim-1"
    stream: bool = False
    input_tokens: int = 1
    """All input, cached or not."""
    cached_tokens: int = 0
    """Of these, the ones that a prompt cache holds."""
    max_tokens: int | None = None
    include_usage: bool = False
    digest: str = ""
    """Stands for the body in the answer's text."""
    agent: str | None = None
    """Whom the truth counts it for; None: its credential."""
    chunks: int | None = None
    interval_s: float | None = None
    latency_s: float | None = None
    unfit: ErrorStatus | None = None
    """What is wrong with the request itself; answered before any limit is asked."""
    prefixes: tuple[Prefix, ...] = ()
    """What the request marks for the prompt cache, shortest first; then the cache says what `cached_tokens` is."""
    turn: TaskTurn | None = None
    """What the answer says, where the request is about a task."""


class AnswerEnding(Enum):
    """How an attempt ends."""

    COMPLETED = "completed"
    REFUSED = "refused"
    """A rate limit."""
    OVERLOADED = "overloaded"
    """The concurrency cap."""
    FAILED = "failed"
    """An error status; nothing was generated."""
    CUT = "cut"
    """A connection or stream that ended early; an error inside a stream."""
    ABANDONED = "abandoned"
    """The client went first."""


@dataclass(frozen=True, slots=True)
class SimAnswer:
    """What one attempt gets. `steps` of sim/plan.py turns it into what happens on the wire."""

    request_id: str
    attempt: int
    """Counted from 1 for each credential."""
    account: str
    agent: str
    model: str
    status: int
    """0: no head is sent."""
    headers: Headers
    ending: AnswerEnding
    dialect: SimDialect = SimDialect.MESSAGES
    latency_s: float = 0
    queued_s: float = 0
    """Of it, in the provider's own queue."""
    interval_s: float = 0
    fault: Fault = OK
    streamed: bool = False
    charged_output: bool = False
    """Whether its output counts at its end; else it was reserved, or nothing is charged."""
    reserved_output: int = 0
    """What was charged beforehand of the output that counts at its end."""
    reply: Reply | None = None
    """None: an error, whose body is `error_body`."""
    error_body: bytes = b""
    """Beside a reply: the event that ends its stream."""

    def body(self) -> bytes:
        """The unstreamed body."""
        return wire.whole_body(self.reply) if self.reply else self.error_body


@dataclass(frozen=True, slots=True)
class TruthPart:
    """The share that one agent, or one dialect, has in the truth."""

    attempts: int = 0
    refused: int = 0
    """By a limit or the concurrency cap."""
    completed: int = 0
    input_tokens: int = 0
    """Uncached, of completed attempts, as the following three."""
    cached_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Truth:
    """What really happened, seen from the provider."""

    attempts: int
    by_status: Mapping[int, int]
    """Attempts by the status that they got; 0: none."""
    refused: int
    overloaded: int
    failed: int
    completed: int
    cut: int
    abandoned: int
    """The client went first."""
    in_flight: int
    peak_in_flight: int
    input_tokens: int
    """Uncached, of completed attempts, as the following two."""
    cached_tokens: int
    output_tokens: int
    wasted_input_tokens: int
    """Uncached, of attempts that were cut or abandoned: billed, and of no use."""
    wasted_output_tokens: int
    faults: Mapping[str, int]
    """Attempts by the fault that they met."""
    agents: Mapping[str, TruthPart]
    dialects: Mapping[str, TruthPart] = field(default_factory=dict)
    """By the dialect's name; only those that were spoken."""


class Witness:
    """Counts attempts as they happen; `truth` freezes the counts."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._by_status: Counter[int] = Counter()
        self._faults: Counter[str] = Counter()
        self._agents: dict[str, Counter[str]] = {}
        self._dialects: dict[SimDialect, Counter[str]] = {}
        self._peak = 0

    def __repr__(self) -> str:
        return f"<Witness of {self.attempts} attempts>"

    @property
    def attempts(self) -> int:
        """Begun so far."""
        return self._counts["attempts"]

    def began(self, answer: SimAnswer, *, in_flight: int) -> None:
        """A call was answered; with it so many are in flight."""
        agent = self._agents.setdefault(answer.agent, Counter())
        dialect = self._dialects.setdefault(answer.dialect, Counter())
        for book in (self._counts, agent, dialect):
            book["attempts"] += 1
        self._by_status[answer.status] += 1
        self._peak = max(self._peak, in_flight)
        if answer.ending in (AnswerEnding.REFUSED, AnswerEnding.OVERLOADED):
            self._counts[answer.ending.value] += 1
            agent["refused"] += 1
            dialect["refused"] += 1
        if answer.fault is not OK:
            self._faults[faults.name_of(answer.fault)] += 1

    def ended(self, answer: SimAnswer, *, output_tokens: int, ending: AnswerEnding) -> None:
        """A call that was neither refused nor overloaded is over."""
        self._counts[ending.value] += 1
        if answer.reply is None:
            return
        if ending is not AnswerEnding.COMPLETED:
            self._counts["wasted_input_tokens"] += answer.reply.input_tokens
            self._counts["wasted_output_tokens"] += output_tokens
            return
        reply = answer.reply
        parts = self._agents[answer.agent], self._dialects[answer.dialect]
        for book in (self._counts, *parts):
            book["input_tokens"] += reply.input_tokens
            book["cached_tokens"] += reply.cached_tokens
            book["output_tokens"] += output_tokens
        for book in parts:
            book["completed"] += 1
            book["written_tokens"] += reply.written_tokens

    def truth(self, in_flight: int) -> Truth:
        """All of it."""
        names = [
            one.name for one in fields(Truth) if one.type is int and one.name not in ("in_flight", "peak_in_flight")
        ]
        return Truth(
            **{name: self._counts[name] for name in names},
            by_status=dict(self._by_status),
            in_flight=in_flight,
            peak_in_flight=self._peak,
            faults=dict(self._faults),
            agents={name: TruthPart(**agent) for name, agent in self._agents.items()},
            dialects={dialect.value: TruthPart(**book) for dialect, book in self._dialects.items()},
        )
