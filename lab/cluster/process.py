"""A simulated proxy process: a node, a clock, the clients' requests, and the attempts at the provider.

The process works as `proxy/run/driver.py` does: after any news the process polls the node, carries out the decisions,
and arms a timer for the node's next wakeup. The provider has strict limits, and counts the attempts above them.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from hivemind_addon.kernel.budget import actual_spend
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Refused, Shed
from hivemind_addon.kernel.values.events import Submitted, TicketEnded
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Reading,
    Ticket,
    Usage,
)
from hivemind_addon.plugins.cluster.messages import Packet
from hivemind_addon.plugins.cluster.node import ClusterNode, Role
from hivemind_addon.sim.limits import Limit
from lab.cluster.network import Line

MOST_TOKENS = 400
"""Of an answer."""
_SUCCESS = Outcome(OutcomeKind.SUCCESS, "200", status=200)
_THROTTLED = Outcome(OutcomeKind.THROTTLED, "429 rate_limit_error", status=429, retryable=True)
_FAULTS = (
    Outcome(OutcomeKind.THROTTLED, "429 rate_limit_error", status=429, retryable=True, retry_after_s=0.5),
    Outcome(OutcomeKind.OVERLOADED, "529 overloaded_error", status=529, retryable=True),
    Outcome(OutcomeKind.FAILED, "500 api_error", status=500, retryable=True),
    Outcome(OutcomeKind.FAILED, "connection reset", retryable=True, ambiguous=True),
    Outcome(OutcomeKind.IGNORED, "400 invalid_request_error", status=400),
)


@dataclass(frozen=True, slots=True)
class ProviderReply:
    """The provider's answer to an attempt, and the seconds until the head and the end."""

    outcome: Outcome
    hints: Hints
    head_s: float
    whole_s: float
    tokens: int = 0


class StrictProvider:
    """Attempts begin and end; those above a limit are refused, and counted."""

    def __init__(
        self, slots: int, per_minute: dict[PoolKey, int], service_s: tuple[float, float], rng: random.Random
    ) -> None:
        """`slots`: attempts in flight, of each pool. `per_minute`: requests, as headers say."""
        self.fault_rate = 0.1
        self.in_flight: Counter[PoolKey] = Counter()
        self.refused = 0
        self._slots, self._service_s, self._rng = slots, service_s, rng
        self._minutes = {pool: Limit(Dimension.REQUESTS, amount).allowance(0.0) for pool, amount in per_minute.items()}

    def begin(self, pool: PoolKey, now: float) -> ProviderReply:
        """Answer an attempt; the caller takes the attempt off `in_flight` at the end."""
        self.in_flight[pool] += 1
        over, hints = self.in_flight[pool] > self._slots, Hints()
        if minute := self._minutes.get(pool):
            over = over or not minute.fits(1, now)
            minute.take(0 if over else 1, now)
            amount, free = minute.limit.amount, int(max(0.0, minute.level(now)))
            hints = Hints(
                readings=(Reading("requests", Dimension.REQUESTS, 60.0, amount, free, minute.full_in_s(now)),)
            )
        if over:
            self.refused += 1
            return ProviderReply(_THROTTLED, hints, 0.02, 0.02)
        head_s, whole_s = 0.05, self._rng.uniform(*self._service_s)
        if self._rng.random() < self.fault_rate:
            fault = self._rng.choice(_FAULTS)
            return ProviderReply(fault, hints, head_s, self._rng.uniform(head_s, whole_s))
        return ProviderReply(_SUCCESS, hints, head_s, whole_s, self._rng.randrange(50, MOST_TOKENS))


if TYPE_CHECKING:
    from lab.cluster.world import ClusterWorld

decode_envelope = msgspec.msgpack.Decoder(Packet).decode
_CLIENT_WENT = Outcome(OutcomeKind.CANCELLED, "client went")
_BROKEN = Outcome(OutcomeKind.FAILED, "connection reset", retryable=True, ambiguous=True)
_NEVER_SENT = AttemptResult(Outcome(OutcomeKind.CANCELLED, "client went before it was sent"), charged=Demand(0))
_LATE_S = 0.1
"""A busy process is no later."""
_UNKNOWN_S = 4.0
"""Spending that a process had settled so shortly before a kill may be known to nobody."""
_LAST_WORDS_S = 2.0
"""How long an idle process waits for a coordinator, to report the spending."""
_WITHOUT_COORDINATOR_S = 20.0
"""The longest time that a process of a run is without a coordinator."""
_MOST_TURNS = 50
"""The most polls at an instant; a node that wants more spins."""


class Violation(Exception):
    """A promise was broken."""


@dataclass(slots=True, eq=False)
class Flight:
    """An attempt at the provider."""

    attempt: Attempt
    reply: ProviderReply
    is_over: bool = False


@dataclass(slots=True, eq=False)
class ClientRequest:
    """A client's request."""

    ticket: Ticket
    """Has instants of the process's clock."""
    process: str
    done: Callable[[str, float], None]
    """Gets the end (`delivered`, `gave up`, `shed`, `refused`, `cancelled`, `died`), and the seconds until a return."""
    flight: Flight | None = None
    attempts: int = 0
    submitted: int = 0
    """Events of the nodes, as `ended`."""
    ended: int = 0
    over: bool = False


class SimProcess:
    """A proxy process, from start to end."""

    def __init__(self, world: "ClusterWorld", me: str, seed: int) -> None:
        rng = self._rng = random.Random(seed)
        self.world, self.me = world, me
        self._clock_offset_s, self._clock_rate = rng.uniform(0, 1e6), 1 + rng.uniform(-5e-5, 5e-5)
        self.state = "running"
        """Or `paused`, `closing`, `dead`."""
        self.requests: dict[str, ClientRequest] = {}
        self.epoch = 0
        """The newest epoch with an admission for this process."""
        self.hears: Packet | None = None
        """The packet in progress."""
        self.node = ClusterNode(
            me=me,
            rng=random.Random(rng.random()),
            make_scheduler=lambda: Scheduler(rng=random.Random(rng.random())),
        )
        self.line = Line(
            me,
            receive=lambda data: self.do(self._receive, data),
            answered=lambda answer: self.do(lambda: self.node.answered(answer, self.now)),
            unheard=lambda name: self.do(lambda: self.node.unheard(name, self.now)),
        )
        self._backlog: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._timer = 0
        self._idle_at = math.inf
        self._slept_at: float | None = None
        self._went_on_at = -math.inf
        """When the last pause ended, on the process's clock."""
        self._settled: list[tuple[float, int, int]] = []
        """Settled attempts: the instant, the tokens used, and the tokens expected."""
        world.network.connect(self.line)
        self.do(lambda: None)

    def __repr__(self) -> str:
        return f"<SimProcess {self.me} {self.state} {self.node!r}>"

    @property
    def now(self) -> float:
        """The process's monotonic clock."""
        return self._clock_offset_s + self.world.now * self._clock_rate

    @property
    def is_there(self) -> bool:
        """Whether a client can reach the process."""
        return self.state in {"running", "paused"}

    # What happens to it ---------------------------------------------------------------------------------------------

    def do(self, deed: Callable[..., object], *arguments: object) -> None:
        """Do something to the process: now, or after the pause."""
        if self.state == "paused":
            self._backlog.append((deed, arguments))
        elif self.state != "dead":
            deed(*arguments)
            self._turn()
            self.hears = None

    def pause(self, *, machine: bool) -> None:
        """SIGSTOP; with `machine` the whole machine sleeps, and connections break."""
        if self.state == "running":
            self.state = "paused"
            if machine:
                self._slept_at = self.now
                for request in self.requests.values():
                    self._leave_provider(request.flight)

    def go_on(self) -> None:
        """SIGCONT, or the machine wakes: the backlog runs in any order, and some messages are lost."""
        if self.state != "paused":
            return
        self.state, self._went_on_at = "running", self.now
        backlog, self._backlog = self._backlog, []
        if self._slept_at is not None:
            self._wake_up(self.now - self._slept_at)
        if self._rng.random() < 0.5:
            self._rng.shuffle(backlog)
        loses = self._rng.random() < 0.3
        for deed, arguments in backlog:
            if not (loses and deed == self._receive):
                self.do(deed, *arguments)
        if self.state in {"running", "closing"}:
            self._turn()

    def _wake_up(self, slept_s: float) -> None:
        """Tell the node, as the driver does, and find all attempts in flight broken."""
        self._slept_at = None
        self.do(self.node.wake_up, slept_s, self.now)
        for request in tuple(self.requests.values()):
            request.ticket = replace(request.ticket, deadline_at=request.ticket.deadline_at + slept_s)
            if request.flight is not None:
                self.do(self._settle, request, request.flight, AttemptResult(_BROKEN))

    def kill(self) -> None:
        """SIGKILL: the process sends nothing more; the provider sees closed connections."""
        if self.state == "dead":
            return
        self.state = "dead"
        self.world.network.disconnect(self.line)
        unknown = self.settled_tokens(_UNKNOWN_S)
        requests, self.requests = self.requests, {}
        for request in requests.values():
            # A waiting ticket may have been admitted, too: the message was on the way.
            unknown += request.ticket.expected.tokens + (request.flight.reply.tokens if request.flight else 0)
            self._leave_provider(request.flight)
            request.over = True
        self.world.died(self, unknown)
        for request in requests.values():
            request.done("died", 0.0)

    def settled_tokens(self, seconds: float = math.inf, *, presumed: bool = False) -> int:
        """Tokens settled in the last `seconds`; `presumed`: as others presume that know of no end."""
        since = self.world.now - seconds
        return sum(max(used, expected) if presumed else used for at, used, expected in self._settled if at > since)

    def close(self) -> None:
        """SIGTERM: shed waiting tickets; attempts in flight may end."""
        if self.state == "running":
            self.do(self.node.close, self.now)
            self.state = "closing"
            self._end_if_idle()

    # Its clients ----------------------------------------------------------------------------------------------------

    def submit(self, request: ClientRequest) -> None:
        """A client asks."""
        self.do(self._submit, request)

    def _submit(self, request: ClientRequest) -> None:
        self.requests[request.ticket.id] = request
        self.node.submit(request.ticket, self.world.settings, self.now)

    def client_goes(self, ticket_id: str) -> None:
        """A client hangs up."""
        self.do(self._client_goes, ticket_id)

    def _client_goes(self, ticket_id: str) -> None:
        request = self.requests.get(ticket_id)
        if request is None:
            return
        self.world.trace(self.me, "client goes", ticket_id)
        if request.flight is not None:
            result = AttemptResult(_CLIENT_WENT, usage=Usage(input_tokens=30, reported=True))
            self._settle(request, request.flight, result)
        elif self.node.cancel(ticket_id, self.now):
            self._over(request, "cancelled")

    # The node's side ------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        self.hears = decode_envelope(data)
        self.node.receive(data, self.now)

    def _on_timer(self, number: int) -> None:
        if number == self._timer:
            self.do(lambda: None)

    def _turn(self) -> None:
        node, now, known = self.node, self.now, self.world.requests
        for _ in range(_MOST_TURNS):
            for decision in node.poll(now):
                self._decided(decision)
            ends = [*node.drain_superseded(), *node.drain_cancelled()]
            for attempt in ends:
                request = self.requests.get(attempt.ticket.id)
                if request is not None and request.flight is not None and request.flight.attempt is attempt:
                    self._settle(request, request.flight, AttemptResult(_CLIENT_WENT))
            for event in node.drain_events():
                match event:
                    case Submitted(ticket=ticket):
                        known[ticket.id].submitted += 1
                    case TicketEnded(ticket_id=ticket_id):
                        known[ticket_id].ended += 1
            for post in node.drain_outbox(now):
                self.world.sends(self, post)
            wakeup_at = node.next_wakeup()
            if not ends and (wakeup_at is None or wakeup_at > now):
                break
        else:
            raise Violation(f"{self.me} spins: at {now} it wants to be woken at {wakeup_at}")
        self.world.turned(self)
        if self.state == "closing":
            self._end_if_idle()
        if wakeup_at is None and self.state == "running":
            raise Violation(f"{self.me} wants never to be woken")
        if wakeup_at is not None:
            self._timer += 1
            at = max(self.world.now + 0.001, (wakeup_at - self._clock_offset_s) / self._clock_rate)
            self.world.agenda.at(at + self._rng.uniform(0, 0.001), self._on_timer, self._timer)

    def _end_if_idle(self) -> None:
        if self.state != "closing" or not self.node.is_idle or self.requests:
            return
        self._idle_at = min(self._idle_at, self.world.now)
        if not self.node.has_untold or self.world.now >= self._idle_at + _LAST_WORDS_S:
            if self.node.has_untold or self.node.role is Role.ALONE:
                self.world.died_with += self.settled_tokens(_WITHOUT_COORDINATOR_S, presumed=True)
            self.node.leave(self.now)
            for post in self.node.drain_outbox(self.now):
                self.world.sends(self, post)
            self.state = "dead"
            self.world.network.disconnect(self.line)
            self.world.left(self)

    def _decided(self, decision: Admitted | Shed | Refused) -> None:
        ticket = decision.attempt.ticket if isinstance(decision, Admitted) else decision.ticket
        request = self.requests.get(ticket.id)
        if request is None:
            raise Violation(f"{self.me}: a decision about {ticket.id}, which is over")
        if request.flight is not None:
            raise Violation(f"{self.me}: {decision} while {ticket.id} is in flight")
        # A pause of this process does not count.
        if self.now > max(ticket.deadline_at, self._went_on_at) + _LATE_S:
            raise Violation(f"{self.me}: {decision} after its deadline")
        match decision:
            case Admitted(attempt):
                self._admitted(request, attempt)
            case Shed(come_back_s=come_back_s):
                self._over(request, "shed", come_back_s)
            case Refused():
                self._over(request, "refused")

    def _admitted(self, request: ClientRequest, attempt: Attempt) -> None:
        request.attempts += 1
        if attempt.number != request.attempts:
            raise Violation(f"{self.me}: {attempt.ticket.id}: attempt {attempt.number} is its {request.attempts}.")
        if self._rng.random() < 0.01:
            self.node.settle(attempt, _NEVER_SENT, self.now)
            self._over(request, "cancelled")
            return
        reply = self.world.provider.begin(attempt.ticket.pool, self.world.now)
        flight = request.flight = Flight(attempt, reply)
        self.world.began(self, request, attempt)
        self.world.agenda.after(reply.head_s, self.do, self._head, flight)
        self.world.agenda.after(reply.whole_s, self._provider_ends, flight)

    def _head(self, flight: Flight) -> None:
        if not flight.is_over and flight.reply.whole_s > flight.reply.head_s:
            answered = flight.reply.outcome.kind is OutcomeKind.SUCCESS
            self.node.observe(flight.attempt, flight.reply.hints, self.now, answered=answered)

    def _provider_ends(self, flight: Flight) -> None:
        if not flight.is_over:
            self._leave_provider(flight)
            self.do(self._end, flight)

    def _leave_provider(self, flight: Flight | None) -> None:
        if flight is not None and not flight.is_over:
            flight.is_over = True
            self.world.provider.in_flight[flight.attempt.ticket.pool] -= 1

    def _end(self, flight: Flight) -> None:
        request, reply = self.requests.get(flight.attempt.ticket.id), flight.reply
        if request is None or request.flight is not flight:
            return
        if reply.whole_s <= reply.head_s:
            self.node.observe(flight.attempt, reply.hints, self.now, answered=False)
        usage = Usage(input_tokens=reply.tokens, reported=True) if reply.tokens else None
        self._settle(request, flight, AttemptResult(reply.outcome, usage=usage))

    def _settle(self, request: ClientRequest, flight: Flight, result: AttemptResult) -> None:
        self._leave_provider(flight)
        request.flight = None
        spend = actual_spend(flight.attempt.ticket, result)
        self.world.spent(spend)
        self._settled.append((self.world.now, spend.tokens, request.ticket.expected.tokens))
        verdict = self.node.settle(flight.attempt, result, self.now)
        self.world.trace(self.me, "settled", request.ticket.id, result.outcome.reason, spend.tokens, verdict)
        if not isinstance(verdict, Backoff):
            words = {OutcomeKind.SUCCESS: "delivered", OutcomeKind.CANCELLED: "cancelled"}
            self._over(request, words.get(result.outcome.kind, "gave up"))

    def _over(self, request: ClientRequest, how: str, come_back_s: float = 0.0) -> None:
        del self.requests[request.ticket.id]
        self.world.trace(self.me, "over", request.ticket.id, how, come_back_s)
        request.over = True
        request.done(how, come_back_s)
