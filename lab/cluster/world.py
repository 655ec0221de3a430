"""A simulated cluster in virtual time: processes, their clients, an engine and a provider. One seed gives one run.

Everything that happens is on one agenda, and every random choice comes of the seed: the same seed gives the same run.
The cluster's promises are checked during and after the run; a promise that is broken raises `Violation`.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.retry import RetryPolicy
from hivemind_addon.kernel.values.command import Cancel, Pause, Resume, SchedulerCommand, SetLimit, SetPriority
from hivemind_addon.kernel.values.spend import Budget, Scope, Spend
from hivemind_addon.kernel.values.ticket import Attempt, Demand, Endpoint, PoolKey, Priority, Ticket
from hivemind_addon.plugins.cluster.messages import EngineRequest, Publish
from hivemind_addon.plugins.cluster.node import Role
from hivemind_addon.sim.agenda import Agenda
from lab.cluster.network import Line, Network, SimEngine, Weather
from lab.cluster.process import MOST_TOKENS, ClientRequest, SimProcess, StrictProvider, Violation, decode_envelope

POOL = PoolKey("api.sim.example", "key-1", "all")
EQUAL = PoolKey("eu.sim.example", "key-2", "all")
"""An endpoint that some requests may go to as well."""
FAULTS_FROM_S = 2.0
CALM_FROM_S = 10.0
"""No fault begins or lasts after this."""
LAST_SUBMIT_S = 14.0
ONE_AGAIN_S = 8.0
"""After the last fault, all are in the same cluster again within this."""
ALL_OVER_S = 150.0
"""All requests have ended by then."""
_KEPT_WITHIN_S = 2.0
"""News for a coordinator is at the engine, unless the coordinator's connections break time and again."""
_TOLD_WITHIN_S = 0.5
"""After the last end, the coordinator knows that."""
_decode_tag = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_ADMITS = msgspec.msgpack.encode("admits")


@dataclass(frozen=True, slots=True)
class FailureScenario:
    """The faults and the promises of a row of `docs/cluster.md`."""

    name: str
    faults: Callable[["ClusterWorld"], None]
    over_limit: Callable[[int, int], float] = lambda limit, members: 0.0  # noqa: ARG005 - each takes both
    """Limit, members → by how many attempts the provider's limit may be exceeded for a while."""
    exact_books: bool = True
    """To the unit; else but for spending that a killed process had in flight, or unreported."""
    never_alone: bool = True
    """No member goes alone."""


@dataclass(slots=True)
class Place:
    """Where a process runs; a new start makes another process."""

    number: int
    process: SimProcess
    starts: int = 1


@dataclass(slots=True)
class _Agent:
    name: str
    place: int
    priority: Priority
    asked: int = 0
    coming_back: str = ""
    """The hash of the request that the agent was asked to come back with."""
    is_done: bool = False


class ClusterWorld:
    """A run. `run` raises Violation, with the history in `lines`."""

    def __init__(self, seed: int, scenario: FailureScenario) -> None:
        rng = self.rng = random.Random(f"{scenario.name}/{seed}")
        self.scenario = scenario
        self.agenda, self.engine = Agenda(), SimEngine()
        self.network = Network(self.agenda, self.engine, random.Random(rng.random()))
        self.size = rng.choice([2, 3, 3, 4])
        self.limit = rng.choice([1, 2, 3, 4, 6])
        minute = rng.choice([None, None, 60])
        provider_rng = random.Random(rng.random())
        service_s = rng.choice([(0.3, 2.0), (0.3, 2.0), (0.5, 9.0)])
        self.provider = StrictProvider(self.limit, {POOL: minute} if minute else {}, service_s, provider_rng)
        self.endpoints = (Endpoint(POOL), Endpoint(EQUAL)) if rng.random() < 0.3 else ()
        """Of the requests that have a choice."""
        self.budget = Budget(Scope.EVERYONE, "", tokens=rng.choice([3_000, 10**6]))
        self.settings = PoolSettings(
            profile="sim",
            concurrency=ConcurrencySettings(initial=self.limit, maximum=self.limit),
            retry=RetryPolicy(max_backoff_s=4.0),
        )
        self.figures: Counter[str] = Counter()
        """Tickets, their ends, attempts, 429s, processes that went `alone`, and the most attempts `over the limit`."""
        self.lines: list[tuple[object, ...]] = []
        self.requests: dict[str, ClientRequest] = {}
        """All of the run, by ticket."""
        self.true_spend = Spend()
        self.died_with = 0
        """Tokens that processes had in flight, or had not reported, when they were killed."""
        self._left_with = 0
        """All tokens of processes that are gone."""
        self._admitter: dict[int, str] = {}
        """By epoch."""
        self._newest_epoch = 0
        """In which anything was admitted."""
        self._roles: dict[str, Role] = {}
        self.places: list[Place] = []
        for number in range(self.size):
            self.places.append(Place(number, self._process(number, 1)))
        self._agents = [
            _Agent(f"agent-{number}", number % self.size, rng.choice([Priority.NORMAL, Priority.NORMAL, Priority.HIGH]))
            for number in range(self.size * rng.choice([1, 2]))
        ]
        for agent in self._agents:
            self.agenda.after(rng.uniform(0.3, 1.5), self._ask, agent)
        if rng.random() < 0.3:
            self._give_orders()

    def __repr__(self) -> str:
        return f"<ClusterWorld {self.scenario.name} at {self.now:.3f}, {len(self.places)} places, limit {self.limit}>"

    @property
    def now(self) -> float:
        """The world's own time."""
        return self.agenda.now

    @property
    def processes(self) -> list[SimProcess]:
        """Of all places, dead ones too."""
        return [place.process for place in self.places]

    def run(self) -> None:
        """Run to the end. Raises Violation, and any error of a node."""
        self.scenario.faults(self)
        self.agenda.at(CALM_FROM_S, self._calm)
        self.agenda.at(CALM_FROM_S + ONE_AGAIN_S, self._check_one)
        over_at = math.inf
        while self.agenda.first_at < min(ALL_OVER_S, over_at + _TOLD_WITHIN_S):
            self.agenda.step()
            if over_at == math.inf and self._is_over:
                over_at = self.now
        self._check_end()

    # Faults: what scenarios do -------------------------------------------------------------------------------------

    def kill(self, place: Place, again_after_s: float) -> None:
        """SIGKILL, and a new start."""
        self.trace(place.process.me, "killed")
        place.process.kill()
        self.agenda.after(again_after_s, self._start, place)

    def stop(self, place: Place, again_after_s: float) -> None:
        """SIGTERM, and a new start after the end."""
        self.trace(place.process.me, "stopped")
        place.process.close()
        self.agenda.after(again_after_s, self._start_if_dead, place)

    def pause(self, place: Place, lasts_s: float, *, machine: bool = False) -> None:
        """SIGSTOP, and SIGCONT; with `machine` the whole machine sleeps, and wakes."""
        process = place.process
        self.trace(process.me, "sleeps" if machine else "paused", lasts_s)
        process.pause(machine=machine)
        self.agenda.after(lasts_s, self._go_on, process)

    def cut(self, place: Place, lasts_s: float) -> None:
        """Nothing gets from the process to the engine, or back, or both."""
        line = place.process.line
        up, down = self.rng.choice([(True, True), (True, True), (True, False), (False, True)])
        self.trace(line.me, "cut", "up" if up else "", "down" if down else "", lasts_s)
        line.up, line.down = line.up and not up, line.down and not down
        self.agenda.after(lasts_s, self._mend, line)

    def engine_gone(self, lasts_s: float, *, empty: bool = False) -> None:
        """The engine cannot be reached; with `empty`, the engine is empty when that ends."""
        self.trace("engine", "gone", lasts_s, "empty" if empty else "")
        self.network.engine_goes()
        self.agenda.after(lasts_s, self._engine_back, empty)

    def engine_flushed(self) -> None:
        """The engine loses all keys, and stays reachable."""
        self.trace("engine", "flushed")
        self.engine.lose_keys()

    def foul_weather(self, weather: Weather) -> None:
        """Hops are worse, until the calm."""
        self.trace("weather", weather)
        self.network.weather = weather

    def coordinator(self) -> Place:
        """Where the coordinator is now; any place where there is none."""
        there = [place for place in self.places if place.process.is_there]
        found = [place for place in there if place.process.node.role is Role.COORDINATOR]
        return (found or there or self.places)[0]

    def member(self) -> Place:
        """Any other than the coordinator, at random."""
        first = self.coordinator()
        return self.rng.choice([place for place in self.places if place is not first])

    def _go_on(self, process: SimProcess) -> None:
        self.trace(process.me, "goes on")
        process.go_on()

    def _mend(self, line: Line) -> None:
        if any(process.line is line for process in self.processes):
            self.trace(line.me, "mended")
            line.up = line.down = True

    def _engine_back(self, empty: bool) -> None:
        if empty:
            self.engine.lose_keys()
        self.trace("engine", "back", "empty" if empty else "")
        self.network.engine_comes()

    def _start(self, place: Place) -> None:
        if place.process.state == "dead":
            place.starts += 1
            place.process = self._process(place.number, place.starts)
            self.trace(place.process.me, "started")

    def _start_if_dead(self, place: Place) -> None:
        if place.process.state == "dead":
            self._start(place)
        else:
            self.agenda.after(0.5, self._start_if_dead, place)

    def _process(self, number: int, starts: int) -> SimProcess:
        return SimProcess(self, f"host{number}-{starts}", self.rng.getrandbits(48))

    def _calm(self) -> None:
        self.trace("weather", "calm")
        self.network.weather = Weather()
        self.provider.fault_rate = 0.0
        if not self.network.engine_is_up:
            self._engine_back(empty=False)
        for place in self.places:
            place.process.line.up = place.process.line.down = True
            place.process.go_on()
            self._start(place)

    # Clients, and a person --------------------------------------------------------------------------------------------

    def _ask(self, agent: _Agent) -> None:
        if self.now > LAST_SUBMIT_S or agent.is_done:
            agent.is_done = True
            return
        rng = self.rng
        process = self.places[agent.place].process
        if not process.is_there:
            there = [process for process in self.processes if process.is_there]
            if not there:
                self.agenda.after(0.3, self._ask, agent)
                return
            process = rng.choice(there)
        agent.asked += 1
        ticket_id = f"{agent.name}.{agent.asked}"
        patience_s = 300.0 if rng.random() < 0.6 else rng.uniform(3.0, 15.0)
        now = process.now
        ticket = Ticket(
            id=ticket_id,
            pool=POOL,
            agent=agent.name,
            session=f"{agent.name}/{rng.randrange(2)}",
            model="sim-1",
            demand=Demand(requests=1, input_tokens=200, total_tokens=200),
            arrived_at=now,
            deadline_at=now + patience_s,
            shed_at=now + 0.9 * patience_s,
            priority=agent.priority,
            request_hash=agent.coming_back or ticket_id,
            budgets=(self.budget,),
            expected=Spend(tokens=200),
            endpoints=self.endpoints if rng.random() < 0.5 else (),
        )
        request = ClientRequest(ticket, process.me, lambda how, back_s: self._answered(agent, ticket, how, back_s))
        self.requests[ticket_id] = request
        self.figures["tickets"] += 1
        self.trace(process.me, "asks", ticket_id, patience_s)
        process.submit(request)
        if rng.random() < 0.1:
            self.agenda.after(rng.uniform(0.001, 3.0), process.client_goes, ticket_id)
        elif rng.random() < 0.5:
            self.agenda.after(patience_s + rng.uniform(0.0, 1.0), self._ask_again, agent, process, ticket_id)

    def _ask_again(self, agent: _Agent, process: SimProcess, ticket_id: str) -> None:
        """A client whose patience has ended sends the same request anew, at any member, while the first still runs."""
        request = process.requests.get(ticket_id)
        if request is None or request.flight is None or self.now > LAST_SUBMIT_S:
            return
        request.done = lambda how, come_back_s: None  # noqa: ARG005 - nobody hears it
        agent.coming_back = request.ticket.request_hash
        agent.place = self.rng.randrange(self.size)
        self._ask(agent)

    def _answered(self, agent: _Agent, ticket: Ticket, how: str, come_back_s: float) -> None:
        agent.coming_back = ticket.request_hash if how == "shed" else ""
        agent.is_done = agent.is_done or how == "refused"
        self.figures[how] += 1
        wait_s = self.rng.uniform(0.0, 0.3)
        if how == "shed":
            wait_s = min(come_back_s, 2.0)
        elif how == "died":
            wait_s = self.rng.uniform(0.2, 1.0)
        self.agenda.after(wait_s, self._ask, agent)

    def _give_orders(self) -> None:
        """Orders at any process; before the end all of them are taken back."""
        rng = self.rng
        orders: list[SchedulerCommand] = [Pause(), Pause(POOL.host), SetLimit(1), SetPriority("agent-1", Priority.HIGH)]
        for order in rng.sample(orders, rng.choice([1, 2])):
            self.agenda.at(rng.uniform(FAULTS_FROM_S, CALM_FROM_S), self._order, order)
        for _ in range(3):
            self.agenda.at(rng.uniform(FAULTS_FROM_S, CALM_FROM_S), self._cancel_any)
        for order in (Resume(), Resume(POOL.host), SetLimit(None), SetPriority("agent-1", None)):
            self.agenda.at(CALM_FROM_S + ONE_AGAIN_S, self._order, order)

    def _order(self, order: SchedulerCommand) -> None:
        there = [process for process in self.processes if process.is_there]
        if there:
            process = self.rng.choice(there)
            self.trace(process.me, "ordered", order)
            process.do(lambda: process.node.command(order, process.now))

    def _cancel_any(self) -> None:
        owned = [ticket_id for process in self.processes for ticket_id in process.requests]
        if owned:
            self._order(Cancel(self.rng.choice(owned)))

    # What processes report: the checks during the run -----------------------------------------------------------------

    def trace(self, who: str, what: object, *more: object) -> None:
        """Note an event of the run."""
        self.lines.append((round(self.now, 4), who, what, *more))

    def sends(self, process: SimProcess, request: EngineRequest) -> None:
        """A process asks the engine for something, or publishes."""
        if isinstance(request, Publish):
            envelope = decode_envelope(request.data)
            if not envelope.to_coordinator and any(_is_admission(raw) for raw in envelope.messages):
                self._admits(process.me, envelope.epoch)
        self.network.send(process.line, request)

    def _admits(self, me: str, epoch: int) -> None:
        first = self._admitter.setdefault(epoch, me)
        if not self.engine.times_emptied and (first != me or epoch < self._newest_epoch):
            raise Violation(f"{me} admits in epoch {epoch}, as {first} does; the newest is {self._newest_epoch}")
        self._newest_epoch = max(self._newest_epoch, epoch)

    def turned(self, process: SimProcess) -> None:
        """A process has done something."""
        role = process.node.role
        if self._roles.get(process.me) is not role:
            self._roles[process.me] = role
            self.trace(process.me, "is", role.name)
            if role is Role.ALONE:
                self.figures["alone"] += 1
                if self.scenario.never_alone and process.state == "running":
                    raise Violation(f"{process.me} goes alone")

    def began(self, process: SimProcess, request: ClientRequest, attempt: Attempt) -> None:
        """An attempt is at the provider."""
        ticket = attempt.ticket
        if request.over:
            raise Violation(f"{process.me}: {ticket.id} is admitted after its end")
        in_flight = self.provider.in_flight[ticket.pool]
        self.trace(process.me, "sent", ticket.id, attempt.number, process.node.role.name, f"{in_flight}th")
        if process.hears is not None and not self.engine.times_emptied:
            epoch = process.hears.epoch
            if epoch < process.epoch:
                raise Violation(f"{process.me} takes an admission of epoch {epoch}, after {process.epoch}")
            process.epoch = epoch
        if process.node.role is Role.COORDINATOR:
            self._admits(process.me, process.node.cluster_view(process.now).epoch)
        self.figures["attempts"] += 1
        over = in_flight - self.limit
        self.figures["over the limit"] = max(self.figures["over the limit"], over)
        if over > self.scenario.over_limit(self.limit, self.size):
            raise Violation(f"{in_flight} in flight, above the limit {self.limit}")

    def spent(self, spend: Spend) -> None:
        """The real spending of an attempt."""
        self.true_spend += spend
        over = self.true_spend.tokens - (self.budget.tokens or 0)
        if over > self.died_with + MOST_TOKENS * (2 * self.limit + self.size):
            raise Violation(f"{over} tokens above the budget")

    def died(self, process: SimProcess, tokens: int) -> None:
        """A process was killed: so much of the spending in flight or settled there may be unknown."""
        self.died_with += tokens
        self._left_with += process.settled_tokens()

    def left(self, process: SimProcess) -> None:
        """A process has ended in order. The last reports are lost with a coordinator that has not kept them yet."""
        unkept_s = math.inf if self.network.weather.break_rate else _KEPT_WITHIN_S
        self.died(process, process.settled_tokens(unkept_s))
        self.trace(process.me, "has ended")

    # Checks after the run ---------------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return (
            self.now > max(LAST_SUBMIT_S + 5, CALM_FROM_S + ONE_AGAIN_S + 2)
            and all(agent.is_done for agent in self._agents)
            and not any(process.requests for process in self.processes)
        )

    def _check_one(self) -> None:
        there = [process for process in self.processes if process.state == "running"]
        roles = [process.node.role for process in there]
        if roles.count(Role.COORDINATOR) != 1 or roles.count(Role.MEMBER) != len(roles) - 1:
            raise Violation(f"not one cluster: {there}")

    def _check_end(self) -> None:
        self.figures["429s"] = self.provider.refused
        waiting = [ticket_id for process in self.processes for ticket_id in process.requests]
        left = self.provider.in_flight.total()
        if waiting or left:
            raise Violation(f"at the end there still are {waiting}, and {left} attempts at the provider")
        alive = {process.me for process in self.processes if process.state != "dead"}
        for ticket_id, request in self.requests.items():
            if request.process in alive and (request.submitted, request.ended) != (1, 1):
                raise Violation(f"{ticket_id}: submitted {request.submitted} and ended {request.ended} times")
        process = self.coordinator().process
        views = process.node.snapshot(process.now).budgets
        booked, reserved = sum(view.spent.tokens for view in views), sum(view.reserved.tokens for view in views)
        difference, allowed = booked - self.true_spend.tokens, 0
        if not self.scenario.exact_books:
            # An engine that forgets leaves copies of some seconds ago; who is gone does not tell what it spent since.
            allowed = self.died_with + (self._left_with if self.engine.times_emptied else 0)
        if reserved or abs(difference) > allowed:
            raise Violation(f"booked {booked} (and {reserved} reserved): {difference} off, allowed {allowed}")


def _is_admission(raw: msgspec.Raw) -> bool:
    return bytes(_decode_tag(raw)["type"]) == _ADMITS
