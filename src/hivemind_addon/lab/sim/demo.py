"""The demo: one fleet against one strict and faulty provider, first directly, then through a real mitmdump.

Both phases have the same agents with the same wishes, and the same provider, made anew with the same seed. Nothing
leaves loopback.
"""

import asyncio
import dataclasses
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import yaml

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.agents import HOST, AgentState, Habits, Route, SimAgent
from hivemind_addon.lab.sim.bound import Bound, Spent, lower_bound
from hivemind_addon.lab.sim.certificate import Certificates, write_certificates
from hivemind_addon.lab.sim.limits import Limit, LimitKind
from hivemind_addon.lab.sim.mitmdump import Mitmdump, running_mitmdump
from hivemind_addon.lab.sim.provider import ProviderSettings
from hivemind_addon.lab.sim.server import SimServer
from hivemind_addon.lab.sim.truth import Truth
from hivemind_addon.proxy.profile.load import load_profiles

_KEY = "sk-sim-demo"
_TICK_S = 0.25
_TOKENS_PER_CHUNK = 10

FAULTS: Mapping[str, float] = MappingProxyType(
    {"502": 0.08, "reset-before-head": 0.05, "529": 0.03, "head-then-reset": 0.02, "error-second": 0.02}
)
"""Share of the admitted calls. The last two happen inside a 200 stream, before its first content."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The size of a demo."""

    agents: int = 11
    habits: Habits = field(default_factory=Habits)
    seed: int = 1
    kind: LimitKind = LimitKind.BUCKET
    """How the provider's limits replenish."""
    window_s: float = 20
    """Of these limits. Real ones are 60 s; shorter ones, smaller in proportion, show the same in less time."""
    requests: int = 36
    """Per window, as are the next two."""
    input_tokens: int = 130_000
    output_tokens: int = 11_000
    concurrency: int = 8
    """Calls that may run at once; one more is a 529."""
    phase_max_s: float = 300
    """After which the agents of a phase that still run count as lost."""

    @property
    def limits(self) -> tuple[Limit, ...]:
        """As the provider enforces them."""
        amounts = {
            Dimension.REQUESTS: self.requests,
            Dimension.INPUT_TOKENS: self.input_tokens,
            Dimension.OUTPUT_TOKENS: self.output_tokens,
        }
        return tuple(Limit(dimension, amount, self.window_s, self.kind) for dimension, amount in amounts.items())

    @property
    def provider(self) -> ProviderSettings:
        """The strict and faulty provider."""
        return ProviderSettings(
            limits=self.limits,
            concurrency=self.concurrency,
            faults=FAULTS,
            tokens_per_chunk=_TOKENS_PER_CHUNK,
        )


def demo_settings(
    *, agents: int | None = None, turns: int | None = None, seed: int | None = None, kind: LimitKind | None = None
) -> DemoSettings:
    """The usual settings, but for what is given."""
    usual = DemoSettings()
    return dataclasses.replace(
        usual,
        agents=usual.agents if agents is None else agents,
        habits=usual.habits if turns is None else dataclasses.replace(usual.habits, turns=turns),
        seed=usual.seed if seed is None else seed,
        kind=usual.kind if kind is None else kind,
    )


class PhaseName(Enum):
    """The way that the agents take."""

    DIRECT = "direct"
    HIVEMIND = "hivemind"


@dataclass(frozen=True, slots=True)
class Progress:
    """One phase at one instant. Upstream numbers are the provider's own truth."""

    name: PhaseName
    elapsed_s: float
    running: int
    finished: int
    dead: int
    turns_done: int
    turns: int
    requests: int
    """Sent by the agents."""
    failed: int
    """Of these, the ones that failed as their agents saw it."""
    attempts: int
    """Upstream."""
    refused: int
    """Attempts that a limit or the concurrency cap refused."""
    in_flight: int


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What came of one phase."""

    name: PhaseName
    agents: int
    alive: int
    """Agents that finished their conversation."""
    deaths: Mapping[str, str]
    """Agent → what it died of."""
    turns_done: int
    turns: int
    requests: int
    failed: int
    """Requests that failed, as the agents saw it."""
    attempts: int
    refused: int
    """Attempts upstream that a limit or the concurrency cap refused, as 429 or 529."""
    faults: Mapping[str, int]
    """Attempts by the fault that they met."""
    peak_in_flight: int
    wasted_tokens: int
    """Tokens that the provider counted and that are in no finished conversation."""
    elapsed_s: float
    bound: Bound
    """How fast any schedule could have been, for what this phase really spent."""
    guard_trips: int
    """Exceptions of the addon's own, from mitmdump's log."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Both phases."""

    settings: DemoSettings
    direct: PhaseResult
    hivemind: PhaseResult

    @property
    def kept_its_promise(self) -> bool:
        """Nobody was lost through the proxy, and nothing in it broke."""
        return self.hivemind.alive == self.hivemind.agents and self.hivemind.guard_trips == 0


class DemoDisplay(Protocol):
    """Where a demo is watched."""

    def began(self, name: PhaseName) -> None:
        """A phase begins."""
        ...

    def ticked(self, progress: Progress) -> None:
        """Some time passed."""
        ...

    def ended(self, result: PhaseResult) -> None:
        """The phase is over."""
        ...


async def run_demo(settings: DemoSettings, screen: DemoDisplay) -> DemoResult:
    """Both phases, one after the other. Raises MitmdumpNotStarted when mitmdump does not start."""
    with tempfile.TemporaryDirectory(prefix="hivemind-demo-") as name:
        folder = Path(name)
        certificates = write_certificates(folder, HOST, datetime.now(UTC))
        direct = await _direct(settings, certificates, screen)
        hivemind = await _hivemind(settings, certificates, folder, screen)
    return DemoResult(settings, direct, hivemind)


async def _direct(settings: DemoSettings, certificates: Certificates, screen: DemoDisplay) -> PhaseResult:
    async with _provider(settings, certificates) as server:
        route = Route(ssl.create_default_context(cafile=certificates.authority), direct=f"{server.host}:{server.port}")
        return await _phase(PhaseName.DIRECT, settings, server, route, screen)


async def _hivemind(
    settings: DemoSettings, certificates: Certificates, folder: Path, screen: DemoDisplay
) -> PhaseResult:
    profiles = folder / "profiles"
    profiles.mkdir()
    (profiles / "anthropic.yaml").write_text(profile_of_windows(settings.window_s), encoding="utf-8")
    confdir = folder / "mitmproxy"
    async with _provider(settings, certificates) as server:
        sets = (
            f"hivemind_redirect={HOST}={server.host}:{server.port}",
            f"hivemind_profiles={profiles}",
            f"ssl_verify_upstream_trusted_ca={certificates.authority}",
        )
        async with running_mitmdump(confdir, sets) as mitmdump:
            route = Route(
                ssl.create_default_context(cafile=confdir / "mitmproxy-ca-cert.pem"), proxy=f"127.0.0.1:{mitmdump.port}"
            )
            return await _phase(PhaseName.HIVEMIND, settings, server, route, screen, mitmdump)


@asynccontextmanager
async def _provider(settings: DemoSettings, certificates: Certificates) -> AsyncIterator[SimServer]:
    tls = (str(certificates.certificate), str(certificates.key))
    server = SimServer(settings.provider, seed=settings.seed, tls=tls)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def profile_of_windows(window_s: float) -> str:
    """The packaged profile with its limits stated for another window, as a user's file would say it."""
    meters = [
        {name: value.value if isinstance(value, Enum) else value for name, value in dataclasses.asdict(meter).items()}
        | {"window_s": window_s}
        for meter in load_profiles(None).by_name["anthropic"].meters
    ]
    return yaml.safe_dump({"extends": "anthropic", "meters": meters}, sort_keys=False)


async def _phase(
    name: PhaseName,
    settings: DemoSettings,
    server: SimServer,
    route: Route,
    screen: DemoDisplay,
    mitmdump: Mitmdump | None = None,
) -> PhaseResult:
    agents = [
        SimAgent(name=f"agent-{number}", key=_KEY, habits=settings.habits, route=route, seed=settings.seed)
        for number in range(1, settings.agents + 1)
    ]
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    screen.began(name)

    def progress() -> Progress:
        return _progress(name, settings, agents, server.truth(), loop.time() - began_at)

    with _ticking(loop, lambda: screen.ticked(progress())), suppress(TimeoutError):
        async with asyncio.timeout(settings.phase_max_s), asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.run())
    result = _result(progress(), settings, agents, server.truth(), mitmdump.guard_trips if mitmdump else 0)
    screen.ended(result)
    return result


@contextmanager
def _ticking(loop: asyncio.AbstractEventLoop, tick: Callable[[], None]) -> Iterator[None]:
    """Call `tick` now and then, until the block ends."""
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


def _progress(
    name: PhaseName, settings: DemoSettings, agents: list[SimAgent], truth: Truth, elapsed_s: float
) -> Progress:
    records = [agent.record for agent in agents]
    states = [record.state for record in records]
    return Progress(
        name=name,
        elapsed_s=elapsed_s,
        running=states.count(AgentState.RUNNING),
        finished=states.count(AgentState.FINISHED),
        dead=states.count(AgentState.DEAD),
        turns_done=sum(record.turns_done for record in records),
        turns=settings.agents * settings.habits.turns,
        requests=sum(record.requests for record in records),
        failed=sum(len(record.failures) for record in records),
        attempts=truth.attempts,
        refused=truth.refused + truth.overloaded,
        in_flight=truth.in_flight,
    )


def _result(
    progress: Progress, settings: DemoSettings, agents: list[SimAgent], truth: Truth, guard_trips: int
) -> PhaseResult:
    finished = [agent.record for agent in agents if agent.record.state is AgentState.FINISHED]
    input_tokens = truth.input_tokens + truth.wasted_input_tokens
    output_tokens = truth.output_tokens + truth.wasted_output_tokens
    spent = Spent(
        units={
            Dimension.REQUESTS: truth.completed + truth.cut + truth.abandoned,
            Dimension.INPUT_TOKENS: input_tokens,
            Dimension.OUTPUT_TOKENS: output_tokens,
        },
        longest_path_s=max((agent.record.path_s for agent in agents), default=0.0),
        service_s=sum(agent.record.service_s for agent in agents),
    )
    late_units = settings.concurrency * max(settings.habits.chunks) * _TOKENS_PER_CHUNK
    return PhaseResult(
        name=progress.name,
        agents=settings.agents,
        alive=progress.finished,
        deaths={
            agent.name: agent.record.death or f"not done after {settings.phase_max_s:g} s"
            for agent in agents
            if agent.record.state is not AgentState.FINISHED
        },
        turns_done=progress.turns_done,
        turns=progress.turns,
        requests=progress.requests,
        failed=progress.failed,
        attempts=progress.attempts,
        refused=progress.refused,
        faults=truth.faults,
        peak_in_flight=truth.peak_in_flight,
        wasted_tokens=input_tokens
        + output_tokens
        - sum(record.input_tokens + record.output_tokens for record in finished),
        elapsed_s=progress.elapsed_s,
        bound=lower_bound(spent, settings.limits, concurrency=settings.concurrency, late_units=late_units),
        guard_trips=guard_trips,
    )
