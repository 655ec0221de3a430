"""One call to the simulated provider, as values: what is asked, what it gets, and how it ends."""

from dataclasses import dataclass
from enum import Enum

from hivemind_addon.lab.sim import dialect as wire
from hivemind_addon.lab.sim.dialect import Headers, Reply, SimDialect, TaskTurn
from hivemind_addon.lab.sim.faults import OK, ErrorStatus, Fault
from hivemind_addon.lab.sim.prompt_cache import Prefix


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
    """What one attempt gets. `steps` of lab/sim/plan.py turns it into what happens on the wire."""

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
    latency_s: float = 0
    interval_s: float = 0
    fault: Fault = OK
    streamed: bool = False
    charged_output: bool = False
    """Whether its output counts as it is generated; else it was reserved, or nothing is charged."""
    reply: Reply | None = None
    """None: an error, whose body is `error_body`."""
    error_body: bytes = b""

    def body(self) -> bytes:
        """The unstreamed body."""
        return wire.whole_body(self.reply) if self.reply else self.error_body
