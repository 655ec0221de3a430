"""A fleet of agents that stampedes services which are no models, in virtual time: direct, and through the scheduler.

Profiles, heads, refusals and the scheduler are the proxy's own; only mitmproxy is left out. An agent works in turns: it
thinks as long as a model takes, then calls several tools at once, and goes on after the last answer. A call that is
refused in the end is lost; the agent goes on without that answer.
"""

import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from hivemind_addon.formats.profile.load import NamedTool, load_profiles
from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
from hivemind_addon.formats.wire.description import PlainRequest, describe_plain, may_repeat, only_reads
from hivemind_addon.formats.wire.dialect import dialect_of
from hivemind_addon.formats.wire.outcome import never_run
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Refused, Shed
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Ticket
from hivemind_addon.sim.agenda import Agenda
from lab.services import ServiceReply, SimGithub, SimSearch, SimService

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hivemind_addon.formats.profile.model import Profile

GITHUB, SEARCH = "api.github.com", "api.tavily.com"
_EPOCH = 1_790_000_000.0
_USER_AGENTS = {GITHUB: "octokit-core.js/6.1.2", SEARCH: "python-requests/2.32.3"}
_MOST_OBEYED_S = 60.0
_WAKE_S = 1e-6


@dataclass(frozen=True, slots=True)
class ToolFleet:
    """The number of agents, and their work."""

    agents: int = 20
    turns: int = 12
    reads: int = 6
    """Of GitHub, at once, in each turn."""
    writes: float = 0.5
    """Of GitHub, in a turn."""
    searches: float = 0.25
    """Of GitHub, in a turn."""
    web: float = 0.8
    """Calls of the search API, in a turn."""
    thinks_s: tuple[float, float] = (3.0, 6.0)


USUAL = ToolFleet()


@dataclass(slots=True)
class FleetCall:
    """A call that an agent wants."""

    agent: int
    host: str
    method: str
    path: str
    wanted_at: float
    resends: int = 0


@dataclass(slots=True)
class FleetRun:
    """The result of a run."""

    wanted: Counter[str] = field(default_factory=Counter)
    """By host."""
    refused: Counter[str] = field(default_factory=Counter)
    """Calls that an agent lost, by host."""
    sent: Counter[str] = field(default_factory=Counter)
    """Calls that came to each service."""
    refused_there: Counter[str] = field(default_factory=Counter)
    """Calls that the services refused."""
    waits_s: list[float] = field(default_factory=list)
    """From a call to the answer."""
    took_s: float = 0.0
    """Until the last agent had done."""

    @property
    def lost_share(self) -> float:
        """Of the calls wanted."""
        return self.refused.total() / max(1, self.wanted.total())

    def wait_s(self, share: float) -> float:
        """So many of the answered calls took no longer."""
        ordered = sorted(self.waits_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class _World(ABC):
    """A run: agents, services and an agenda. A subclass says how a call gets to a service."""

    def __init__(self, fleet: ToolFleet, seed: int) -> None:
        self.fleet, self.agenda, self.run = fleet, Agenda(), FleetRun()
        self.services: Mapping[str, SimService] = {
            GITHUB: SimGithub(random.Random(f"{seed} github")),
            SEARCH: SimSearch(random.Random(f"{seed} search")),
        }
        self._rngs = [random.Random(f"{seed} {number}") for number in range(fleet.agents)]
        self._turns = [0] * fleet.agents
        self._open = [0] * fleet.agents

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.agenda.now:.1f} s>"

    def monotonic(self) -> float:
        """As the proxy's clock has the time."""
        return self.agenda.now

    awake = monotonic

    def wall(self) -> float:
        """The same in epoch seconds."""
        return _EPOCH + self.agenda.now

    def play(self) -> FleetRun:
        """Run to the end."""
        for agent in range(self.fleet.agents):
            self._turn(agent)
        while self.agenda.step(self.wakes_at()):
            self.look()
        self.run.took_s = self.agenda.now
        for host, service in self.services.items():
            self.run.sent[host] = service.calls
            self.run.refused_there[host] = service.refused.total()
        return self.run

    def wakes_at(self) -> float:
        """When time alone changes something."""
        return math.inf

    @abstractmethod
    def look(self) -> None:
        """Something has happened."""

    def _turn(self, agent: int) -> None:
        fleet, rng = self.fleet, self._rngs[agent]
        if self._turns[agent] == fleet.turns:
            return
        self._turns[agent] += 1
        repo = f"/repos/o/r{agent}"
        calls = [(GITHUB, "GET", f"{repo}/contents/{number}") for number in range(fleet.reads)]
        if rng.random() < fleet.writes:
            calls.append((GITHUB, "POST", f"{repo}/issues"))
        if rng.random() < fleet.searches:
            calls.append((GITHUB, "GET", "/search/issues"))
        if rng.random() < fleet.web:
            calls.append((SEARCH, "POST", "/search"))
        self._open[agent] = len(calls)
        for host, method, path in calls:
            self.run.wanted[host] += 1
            self.call(FleetCall(agent, host, method, path, self.agenda.now))

    @abstractmethod
    def call(self, call: FleetCall) -> None:
        """An agent wants a call."""

    def over(self, call: FleetCall, *, answered: bool) -> None:
        """The agent has an answer, or a refusal."""
        if answered:
            self.run.waits_s.append(self.agenda.now - call.wanted_at)
        else:
            self.run.refused[call.host] += 1
        self._open[call.agent] -= 1
        if not self._open[call.agent]:
            self.agenda.after(self._rngs[call.agent].uniform(*self.fleet.thinks_s), self._turn, call.agent)


class _Direct(_World):
    """Each call goes at once. `resends`: so often a refused call is sent again, by the retry-after."""

    def __init__(self, fleet: ToolFleet, seed: int, *, resends: int) -> None:
        super().__init__(fleet, seed)
        self._resends = resends

    def look(self) -> None:
        """Nobody waits here."""

    def call(self, call: FleetCall) -> None:
        reply = self.services[call.host].came(call.method, call.path, self.agenda.now, self.wall())
        self.agenda.after(reply.takes_s, self._answered, call, reply)

    def _answered(self, call: FleetCall, reply: ServiceReply) -> None:
        self.services[call.host].ended()
        if reply.status < 400:
            self.over(call, answered=True)
        elif call.resends == self._resends:
            self.over(call, answered=False)
        else:
            call.resends += 1
            told_s = float(reply.headers.get("retry-after", "1"))
            self.agenda.after(min(told_s, _MOST_OBEYED_S), self.call, call)


class _Scheduled(_World):
    """Through the scheduler."""

    def __init__(self, fleet: ToolFleet, seed: int) -> None:
        super().__init__(fleet, seed)
        profiles = load_profiles(None, (NamedTool("github"), NamedTool("tavily")))
        self._profiles: Mapping[str, Profile] = {GITHUB: profiles.by_name["github"], SEARCH: profiles.by_name["tavily"]}
        self._scheduler = Scheduler(rng=random.Random(f"{seed} scheduler"))
        self._calls: dict[str, FleetCall] = {}
        self._changed = False

    def wakes_at(self) -> float:
        at = self._scheduler.next_wakeup()
        return math.inf if at is None else max(at, self.agenda.now + _WAKE_S)

    def call(self, call: FleetCall) -> None:
        profile, now = self._profiles[call.host], self.agenda.now
        headers = {"authorization": "Bearer one-key-for-all", "user-agent": _USER_AGENTS[call.host]}
        request = PlainRequest("https", call.host, 443, call.path, headers, b"")
        told = describe_plain(profile, request, user=f"agent-{call.agent}", peer="127.0.0.1:1")
        patience_s = told.requester.known_patience_s or profile.patience.default_s
        ticket = Ticket(
            id=f"t{len(self._calls)}",
            pool=told.pool,
            agent=told.who.agent,
            session=told.who.session,
            model=told.facts.model,
            demand=told.size.estimate.demand,
            arrived_at=now,
            deadline_at=now + patience_s,
            shed_at=now + max(patience_s - profile.patience.margin_s, 0.9 * patience_s),
            kind=told.kind,
            only_reads=only_reads(profile, call.method, call.path),
        )
        self._calls[ticket.id] = call
        self._scheduler.submit(ticket, profile.pool_settings, now)
        self.look()

    def look(self) -> None:
        now = self.agenda.now
        for decision in self._scheduler.poll(now):
            match decision:
                case Admitted(attempt):
                    call = self._calls[attempt.ticket.id]
                    reply = self.services[call.host].came(call.method, call.path, now, self.wall())
                    self.agenda.after(reply.takes_s, self._answered, attempt, call, reply)
                case Shed(ticket) | Refused(ticket):
                    self.over(self._calls[ticket.id], answered=False)
                case _:
                    assert_never(decision)
        self._scheduler.drain_events()

    def _answered(self, attempt: Attempt, call: FleetCall, reply: ServiceReply) -> None:
        self.services[call.host].ended()
        profile, now = self._profiles[call.host], self.agenda.now
        answer = AnswerInProgress(profile, dialect_of(profile.format), self, group=attempt.ticket.pool.model_group)
        answer.head(reply.status, reply.headers)
        self._scheduler.observe(attempt, answer.hints, now, answered=reply.status < 400)
        answer.look(reply.body)
        answer.finish()
        outcome = answer.judge_stream()
        may_again = may_repeat(profile, call.method, {}, call.path) or never_run(outcome)
        verdict = self._scheduler.settle(attempt, AttemptResult(outcome, may_repeat=may_again), now)
        if not isinstance(verdict, Backoff):
            self.over(call, answered=reply.status < 400)


def direct(seed: int, fleet: ToolFleet = USUAL, *, resends: int = 0) -> FleetRun:
    """The fleet without a proxy. `resends`: the clients' reaction to a refusal, by the services' retry-after."""
    return _Direct(fleet, seed, resends=resends).play()


def scheduled(seed: int, fleet: ToolFleet = USUAL) -> FleetRun:
    """The same fleet through the scheduler, with the packaged profiles."""
    return _Scheduled(fleet, seed).play()
