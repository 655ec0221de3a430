"""A scenario on a real socket: agents, mitmdump with the addon, and the simulated provider, in real time.

Load as in virtual time (sim/world.py): turns, sizes and starts come from the same seeds, and the n-th call that passes
the limits meets the same fault. `hivemind lab prove --live` compares both.
"""

import asyncio
import dataclasses
import itertools
import random
import ssl
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import httpx
import msgspec
import yaml

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.actor import SdkBackoff
from hivemind_addon.sim.agents import HOST, Answered, Route, ask, prose
from hivemind_addon.sim.bound import Ideal, Spent, input_cost, lower_bound_of_models
from hivemind_addon.sim.call import Truth
from hivemind_addon.sim.certificate import Certificates, write_certificates
from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.mitmdump import Mitmdump, running_mitmdump
from hivemind_addon.sim.request import BYTES_PER_TOKEN
from hivemind_addon.sim.result import CrowdResult, Result
from hivemind_addon.sim.server import SimServer, Tls
from hivemind_addon.sim.workload import DEFAULT_MODEL, Crowd, PlannedTurn, Scenario, drawn, drawn_s, prefixes_of, turns

_KEY = "sk-sim-live"
_TICK_S = 0.25
_BACKOFF = SdkBackoff()
TOKENS_PER_CHUNK = 25
"""Of a stream; an event for each token would measure how fast two processes pass on events."""
_MODEL = "claude-sonnet-4-5"
"""The model of crowds that name none."""
_MAX_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """The progress of a run. The upstream figures come from the provider."""

    elapsed_s: float = 0.0
    running: int = 0
    finished: int = 0
    dead: int = 0
    turns_done: int = 0
    requests: int = 0
    """Sent by the agents."""
    failed: int = 0
    """Requests that failed for their agents."""
    attempts: int = 0
    """Attempts upstream."""
    refused: int = 0
    """Attempts that a limit or the concurrency cap refused."""
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run on the socket."""

    result: Result
    """As in virtual time, with differences: a wait is the time of a turn beyond the service; sheds are all refusals to
    agents; openings of the breaker include failed probes; the bound leaves out the time of failed attempts;
    `cap_used` is not measured."""
    counts: LiveCounts
    """The counts at the end of the run."""
    truth: Truth
    """The provider's figures."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Agent that did not finish → the cause of death."""
    guard_trips: int = 0
    """Exceptions inside the addon."""

    @property
    def wasted_tokens(self) -> int:
        """Tokens that the provider counted outside finished conversations."""
        truth = self.truth
        of_finished = sum(
            agent.input_tokens + agent.output_tokens for name, agent in truth.agents.items() if name not in self.lost
        )
        wasted = truth.wasted_input_tokens + truth.wasted_output_tokens
        return truth.input_tokens + truth.output_tokens + wasted - of_finished


@dataclass(frozen=True, slots=True)
class LiveStage:
    """A provider on a socket, and the agents' way to it."""

    server: SimServer
    route: Route
    mitmdump: Mitmdump | None = None
    """The mitmdump between agents and provider, if the stage has any."""


type Staging = Callable[[Scenario, int], AbstractAsyncContextManager[LiveStage]]
"""Starts the provider of a scaled scenario, and the agents' way to the provider, until the block ends.

Raises MitmdumpNotStarted.
"""


@asynccontextmanager
async def through_proxy(scenario: Scenario, seed: int, *, web: bool = False) -> AsyncIterator[LiveStage]:
    """Agents go through a real mitmdump with the addon; `web`: through a mitmweb."""
    async with _secured(scenario, seed) as (server, certificates, folder):
        profiles, confdir = folder / "profiles", folder / "mitmproxy"
        profiles.mkdir()
        (profiles / "anthropic.yaml").write_text(profile_of_windows(window_of(scenario)), encoding="utf-8")
        sets = (
            f"hivemind_redirect={HOST}={server.host}:{server.port}",
            f"hivemind_profiles={profiles}",
            f"ssl_verify_upstream_trusted_ca={certificates.authority}",
        )
        async with running_mitmdump(confdir, sets, web=web) as mitmdump:
            trust = ssl.create_default_context(cafile=confdir / "mitmproxy-ca-cert.pem")
            yield LiveStage(server, Route(trust, proxy=f"127.0.0.1:{mitmdump.port}"), mitmdump)


@asynccontextmanager
async def straight(scenario: Scenario, seed: int) -> AsyncIterator[LiveStage]:
    """Agents connect directly to the provider."""
    async with _secured(scenario, seed) as (server, certificates, _):
        trust = ssl.create_default_context(cafile=certificates.authority)
        yield LiveStage(server, Route(trust, direct=f"{server.host}:{server.port}"))


@asynccontextmanager
async def _secured(scenario: Scenario, seed: int) -> AsyncIterator[tuple[SimServer, Certificates, Path]]:
    """The provider with TLS, the certificates, and a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="hivemind-live-") as name:
        folder = Path(name)
        certificates = write_certificates(folder, HOST)
        tls = (str(certificates.certificate), str(certificates.key))
        async with serving(scenario, seed, tls=tls) as server:
            yield server, certificates, folder


@asynccontextmanager
async def serving(scenario: Scenario, seed: int, *, tls: Tls | None = None) -> AsyncIterator[SimServer]:
    """A scenario's provider, which draws the same faults as in virtual time."""
    settings = dataclasses.replace(scenario.provider, tokens_per_chunk=TOKENS_PER_CHUNK)
    server = SimServer(settings, seed=f"{seed} provider", tls=tls)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def window_of(scenario: Scenario) -> float:
    """The window that all limits share."""
    (window_s,) = {limit.window_s for limit in scenario.provider.limits}
    return window_s


def profile_of_windows(window_s: float) -> str:
    """A user's profile that extends the packaged profile with limits for another window."""
    meters = [
        {name: value.value if isinstance(value, Enum) else value for name, value in dataclasses.asdict(meter).items()}
        | {"window_s": window_s}
        for meter in load_profiles(None).by_name["anthropic"].meters
    ]
    return yaml.safe_dump({"extends": "anthropic", "meters": meters}, sort_keys=False)


async def live(
    scenario: Scenario,
    *,
    seed: int,
    within_s: float,
    staging: Staging = through_proxy,
    watch: Callable[[LiveCounts], None] = lambda _: None,
) -> LiveRun:
    """Run a scaled scenario; agents that still run `within_s` after the start are lost.

    `watch` gets the progress now and then. Raises MitmdumpNotStarted.
    """
    async with staging(scenario, seed) as stage, AsyncExitStack() as stack:
        fleet = LiveFleet(scenario, seed)
        # Handshakes take tens of milliseconds on a busy machine, and virtual time knows none.
        clients = await asyncio.gather(*(agent.connected(stage.route, stack) for agent in fleet.agents))
        with _ticking(lambda: watch(fleet.counts(stage.server.truth()))):
            await fleet.run(clients, within_s)
        truth, proxy = stage.server.truth(), stage.mitmdump
        return LiveRun(
            fleet.result(truth, proxy.breaker_opened if proxy else 0),
            fleet.counts(truth),
            truth,
            {
                agent.name: agent.death or f"not done after {within_s:g} s"
                for agent in fleet.agents
                if not agent.is_done
            },
            proxy.guard_trips if proxy else 0,
        )


@contextmanager
def _ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Call `tick` now and then, until the block ends."""
    loop = asyncio.get_running_loop()
    timer: asyncio.Handle

    def again() -> None:
        nonlocal timer
        timer = loop.call_later(_TICK_S, again)
        tick()

    timer = loop.call_soon(again)
    try:
        yield
    finally:
        timer.cancel()


@dataclass(slots=True)
class _Books:
    """The resources that the turns of all agents took."""

    units: defaultdict[str, Counter[Dimension]] = field(default_factory=lambda: defaultdict(Counter))
    """Model → the least units of each limit."""
    service_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Model → seconds of service."""
    cost: float = 0.0
    """Input paid for, in uncached tokens."""
    ideal: Ideal = field(default_factory=Ideal)
    most_output_tokens: int = 0
    requests: int = 0
    failed: int = 0
    """Requests that failed for their agents."""
    refusals: int = 0
    """Failed requests with an error status."""

    def book(self, crowd: Crowd, prompt_tokens: int, marked: int, answer: Answered) -> None:
        """Book a turn. `marked`: tokens of the agent's last answered prompt."""
        output_tokens = answer.output_tokens
        self.units[crowd.model].update(
            self.ideal.book(crowd, prompt_tokens=prompt_tokens, marked=marked, output_tokens=output_tokens)
        )
        self.cost += input_cost(
            uncached_tokens=answer.input_tokens,
            written_tokens=answer.written_tokens,
            cached_tokens=answer.cached_tokens,
        )
        self.most_output_tokens = max(self.most_output_tokens, output_tokens)


class _Conversation:
    """A request's body that grows turn by turn, exact to a token of the simulated provider."""

    def __init__(self, crowd: Crowd, name: str, seed: int) -> None:
        self._crowd = crowd
        self._words = random.Random(f"{seed} {name} words")
        self._shared = _text(crowd.shared_tokens * BYTES_PER_TOKEN, random.Random(f"{seed} {crowd.name} words"))
        self._messages: list[dict[str, str]] = []

    def asked(self, tokens: int) -> bytes:
        """The body of the next turn, with `tokens` tokens: the user's new text fills the rest."""
        message = {"role": "user", "content": ""}
        self._messages.append(message)
        message["content"] = _text(tokens * BYTES_PER_TOKEN - len(self._body()), self._words)
        return self._body()

    def answered(self, answer: Answered) -> None:
        """Append the answer, filled up: the provider's text is shorter than the tokens of the answer."""
        rest = _text(answer.output_tokens * BYTES_PER_TOKEN - len(answer.text), self._words)
        self._messages.append({"role": "assistant", "content": answer.text + rest})

    def _body(self) -> bytes:
        fields: dict[str, object] = {
            "model": _MODEL if self._crowd.model == DEFAULT_MODEL else self._crowd.model,
            "max_tokens": _MAX_TOKENS,
            "stream": self._crowd.streamed,
        }
        if self._shared:
            fields["system"] = [{"type": "text", "text": self._shared, "cache_control": {"type": "ephemeral"}}]
        return msgspec.json.encode({**fields, "messages": self._messages})


def _text(chars: int, rng: random.Random) -> str:
    return prose(chars + 1, rng)[:chars] if chars > 0 else ""


class LiveAgent:
    """A conversation on the wire, with the same load as the agent of the same name in virtual time."""

    def __init__(self, *, crowd: Crowd, number: int, seed: int, starts_s: float, books: _Books) -> None:
        self.crowd = crowd
        self.number = number
        self.name = f"{crowd.name}-{number}"
        self.turns_s: list[tuple[float, float]] = []
        """Think and service time of the turns that were answered."""
        self.waits_s: list[float] = []
        self.ended_at: float | None = None
        """On the loop's clock."""
        self.death: str | None = None
        self.starts_s = starts_s
        self._books = books
        self._turns = turns(crowd, random.Random(f"{seed} {self.name}"))
        self._jitter = random.Random(f"{seed} {self.name} jitter")
        self._extensions: Mapping[str, str] = {}
        self._conversation = _Conversation(crowd, self.name, seed)
        self._said = drawn(crowd.opening_tokens, self._jitter)
        """Tokens of the conversation so far, without what the crowd shares."""
        self._marked = 0
        """Tokens of the last answered prompt."""

    def __repr__(self) -> str:
        return f"<LiveAgent {self.name}, {len(self.turns_s)} turns done>"

    def anew(self, seed: int) -> "LiveAgent":
        """The same agent at the beginning of the next conversation."""
        return LiveAgent(crowd=self.crowd, number=self.number, seed=seed, starts_s=0.0, books=self._books)

    @property
    def path_s(self) -> float:
        """Seconds until the start, plus all think and service times."""
        return self.starts_s + sum(think_s + service_s for think_s, service_s in self.turns_s)

    @property
    def is_done(self) -> bool:
        """Whether the agent reached the end of the conversation."""
        return self.ended_at is not None and self.death is None

    async def connected(self, route: Route, stack: AsyncExitStack) -> httpx.AsyncClient:
        """The agent's connection, opened by a request that is not scheduled; the stack closes the connection."""
        client = route.client(self.crowd.parent_session or self.name, self.crowd.timeout_s)
        await stack.enter_async_context(client)
        self._extensions = route.extensions
        (await client.get("/v1/models", extensions=dict(self._extensions))).raise_for_status()
        return client

    async def run(self, client: httpx.AsyncClient, way_s: float) -> None:
        """Hold the conversation until the end, or the agent's death. `way_s` counts as service, as in virtual time."""
        loop = asyncio.get_running_loop()
        await pause(self.starts_s)
        for number, turn in enumerate(self._turns, 1):
            await pause(turn.think_s)
            tokens = self.crowd.shared_tokens + self._said + turn.prompt_tokens
            body, headers = self._conversation.asked(tokens), self._headers(turn, number, tokens)
            asked_at = loop.time()
            answer = await self._answer(client, body, headers)
            if answer is None:
                break
            self.waits_s.append(max(0.0, loop.time() - asked_at - turn.service_s))
            self.turns_s.append((turn.think_s, turn.service_s + 2 * way_s))
            self._books.book(self.crowd, tokens, self._marked, answer)
            self._books.service_s[self.crowd.model] += turn.service_s
            self._conversation.answered(answer)
            self._marked = tokens
            self._said = tokens - self.crowd.shared_tokens + answer.output_tokens
        self.ended_at = loop.time()

    async def _answer(self, client: httpx.AsyncClient, body: bytes, headers: dict[str, str]) -> Answered | None:
        """A turn with the agent's own re-sends; None: the agent died."""
        retry = 0
        while True:
            self._books.requests += 1
            outcome = await ask(client, body, headers, streamed=self.crowd.streamed, extensions=self._extensions)
            if isinstance(outcome, Answered):
                return outcome
            self._books.failed += 1
            self._books.refusals += outcome.why.startswith("status ")
            if not outcome.curable or retry >= self.crowd.retries:
                self.death = outcome.why
                return None
            await pause(_BACKOFF.wait_s(retry, outcome.retry_after_s, self._jitter))
            retry += 1

    def _headers(self, turn: PlannedTurn, number: int, tokens: int) -> dict[str, str]:
        crowd = self.crowd
        chunks = max(1, round(turn.output_tokens / TOKENS_PER_CHUNK))
        # A plain answer takes as long as the stream would have.
        head_s = turn.latency_s if crowd.streamed else turn.service_s
        headers = {
            "content-type": "application/json",
            "x-api-key": _KEY,
            "x-sim-agent": self.name,
            "x-stainless-timeout": f"{crowd.timeout_s:g}",
            "x-sim-chunks": str(chunks),
            "x-sim-interval-ms": f"{1000 * turn.generation_s / max(1, chunks - 1):.2f}",
            "x-sim-latency-ms": f"{1000 * head_s:.2f}",
        }
        if crowd.parent_session:
            headers |= {"x-claude-code-session-id": crowd.parent_session, "x-claude-code-agent-id": self.name}
        if crowd.caches:
            prefixes = prefixes_of(crowd, self.name, number, prompt_tokens=tokens, marked=self._marked)
            headers["x-sim-prefixes"] = ", ".join(f"{one.key}={one.tokens}" for one in prefixes)
        return headers


class LiveFleet:
    """All agents of a scenario."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        starts = random.Random(f"{seed} starts")
        self._scenario = scenario
        self._seed = seed
        self.died = 0
        """Agents that `keep_on` has lost so far."""
        self._books = _Books()
        self._began_at = 0.0
        self._makespan_s = 0.0
        self.agents = [
            LiveAgent(
                crowd=crowd, number=number, seed=seed, starts_s=drawn_s(crowd.starts_s, starts), books=self._books
            )
            for crowd in scenario.crowds
            for number in range(crowd.agents)
        ]

    def __repr__(self) -> str:
        return f"<LiveFleet {self._scenario.name}, {len(self.agents)} agents>"

    async def run(self, clients: Sequence[httpx.AsyncClient], within_s: float) -> None:
        """Run all conversations at the same time, each on a client of its own."""
        loop = asyncio.get_running_loop()
        self._began_at = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                for agent, client in zip(self.agents, clients, strict=True):
                    group.create_task(agent.run(client, self._scenario.way_s))
        self._makespan_s = loop.time() - self._began_at

    async def keep_on(self, clients: Sequence[httpx.AsyncClient]) -> None:
        """The same, with conversation after conversation of each agent, until cancelled."""
        self._began_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for place, client in enumerate(clients):
                group.create_task(self._keep_on(place, client))

    async def _keep_on(self, place: int, client: httpx.AsyncClient) -> None:
        for seed in itertools.count(self._seed + 1):
            agent = self.agents[place]
            await agent.run(client, self._scenario.way_s)
            if agent.death is not None:
                self.died += 1
            self.agents[place] = agent.anew(seed)

    def counts(self, truth: Truth) -> LiveCounts:
        """The progress; `truth` comes from the provider."""
        finished = sum(agent.is_done for agent in self.agents)
        dead = sum(agent.death is not None for agent in self.agents)
        return LiveCounts(
            elapsed_s=self._makespan_s or asyncio.get_running_loop().time() - self._began_at,
            running=len(self.agents) - finished - dead,
            finished=finished,
            dead=dead,
            turns_done=sum(len(agent.turns_s) for agent in self.agents),
            requests=self._books.requests,
            failed=self._books.failed,
            attempts=truth.attempts,
            refused=truth.refused + truth.overloaded,
            in_flight=truth.in_flight,
        )

    def result(self, truth: Truth, breaker_opened: int) -> Result:
        """The result; `truth` comes from the provider."""
        books, settings, agents = self._books, self._scenario.provider, self.agents
        wasted = Counter(
            {
                Dimension.REQUESTS: truth.cut + truth.abandoned,
                Dimension.INPUT_TOKENS: truth.wasted_input_tokens,
                Dimension.OUTPUT_TOKENS: truth.wasted_output_tokens,
                Dimension.TOTAL_TOKENS: truth.wasted_input_tokens + truth.wasted_output_tokens,
            }
        )
        longest_path_s = max(agent.path_s for agent in agents)
        spent = {
            model: Spent(
                units=books.units[model],
                longest_path_s=longest_path_s,
                service_s=books.service_s[model],
                turns_s=[agent.turns_s for agent in agents if agent.crowd.model == model],
            )
            for model in {agent.crowd.model for agent in agents}
        }
        if len(spent) == 1:
            # The provider does not report the models of wasted calls.
            (model,) = spent
            spent[model] = dataclasses.replace(spent[model], units=books.units[model] + wasted)
        slots = settings.slots(spent)
        bound = lower_bound_of_models(
            spent,
            settings,
            concurrency=settings.most_at_once(settings.concurrency),
            late_units=books.most_output_tokens * min(slots or len(agents), len(agents)),
        )
        return Result(
            makespan_s=self._makespan_s,
            bound=bound,
            attempts=truth.attempts,
            statuses=Counter(truth.by_status),
            crowds={crowd.name: self._crowd(crowd) for crowd in self._scenario.crowds},
            deaths=Counter(agent.death for agent in agents if agent.death is not None),
            cost=books.cost + truth.wasted_input_tokens,
            ideal_cost=books.ideal.cost,
            cap_used=0.0,
            breaker_opened=breaker_opened,
            sheds=books.refusals,
            neighbour_calls=0,
            shared_bound_s=bound.bound_s,
        )

    def _crowd(self, crowd: Crowd) -> CrowdResult:
        members = [agent for agent in self.agents if agent.crowd is crowd]
        return CrowdResult(
            agents=len(members),
            lost=sum(not agent.is_done for agent in members),
            turns_done=sum(len(agent.turns_s) for agent in members),
            waits_s=tuple(wait_s for agent in members for wait_s in agent.waits_s),
            ended_s=tuple((agent.ended_at or 0.0) - self._began_at for agent in members if agent.is_done),
        )
