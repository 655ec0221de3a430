"""The demo: one scenario on a real socket, first without the scheduler, then with it; alive on a terminal.

Both phases have the same agents with the same wishes, and the same provider, made anew with the same seed. Nothing
leaves loopback.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.agents import HOST
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.live import LiveCounts, LiveFleet, LiveRun, LiveStage, live, straight, through_proxy
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.workload import Crowd, Scenario

FAULTS: Mapping[str, float] = MappingProxyType(
    {"502": 0.08, "reset-before-head": 0.05, "529": 0.03, "head-then-reset": 0.02, "error-second": 0.02}
)
"""Share of the admitted calls. The last two happen inside a 200 stream, before its first content."""
_PHASES = MappingProxyType({"direct": straight, "hivemind": through_proxy})
_TITLES = {
    "direct": "direct: every agent for itself",
    "hivemind": "hivemind: the same agents through mitmdump -s hivemind_addon",
}
_LINE_EVERY_S = 5.0
NEXT_STEP = "Your own agents: hivemind exec -- claude"


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The size of a demo."""

    agents: int = 11
    turns: int = 7
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
    retries: int = 2
    """Re-sends of one turn by its agent, as SDKs do."""
    phase_max_s: float = 300
    """After which the agents of a phase that still run count as lost."""

    @property
    def scenario(self) -> Scenario:
        """Conversations before a strict and faulty provider."""
        amounts = {
            Dimension.REQUESTS: self.requests,
            Dimension.INPUT_TOKENS: self.input_tokens,
            Dimension.OUTPUT_TOKENS: self.output_tokens,
        }
        crowd = Crowd(
            "agent",
            self.agents,
            self.turns,
            think_s=(0.2, 0.9),
            latency_s=0.4,
            output_tokens=(150, 500),
            tokens_per_s=400,
            opening_tokens=(1500, 1500),
            prompt_tokens=(100, 500),
            streamed=True,
            timeout_s=600,
            retries=self.retries,
        )
        provider = ProviderSettings(
            limits=tuple(Limit(dimension, amount, self.window_s, self.kind) for dimension, amount in amounts.items()),
            concurrency=self.concurrency,
            faults=FAULTS,
        )
        return Scenario("demo", (crowd,), provider)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Both phases."""

    settings: DemoSettings
    direct: LiveRun
    hivemind: LiveRun

    @property
    def kept_its_promise(self) -> bool:
        """Nobody was lost through the proxy, and nothing in it broke."""
        return not self.hivemind.lost and self.hivemind.guard_trips == 0

    def figures(self) -> Mapping[str, object]:
        """Both in numbers, for JSON."""
        return {
            "settings": self.settings,
            "direct": _figures("direct", self.direct, self.settings),
            "hivemind": _figures("hivemind", self.hivemind, self.settings),
        }


def _figures(name: str, run: LiveRun, settings: DemoSettings) -> Mapping[str, object]:
    counts = run.counts
    return {
        "name": name,
        "agents": settings.agents,
        "alive": counts.finished,
        "deaths": run.lost,
        "turns_done": counts.turns_done,
        "turns": settings.agents * settings.turns,
        "requests": counts.requests,
        "failed": counts.failed,
        "attempts": counts.attempts,
        "refused": counts.refused,
        "faults": run.truth.faults,
        "peak_in_flight": run.truth.peak_in_flight,
        "wasted_tokens": run.wasted_tokens,
        "elapsed_s": counts.elapsed_s,
        "bound": run.result.bound,
        "guard_trips": run.guard_trips,
    }


async def run_demo(settings: DemoSettings, screen: "DemoScreen") -> DemoResult:
    """Both phases, one after the other. Raises MitmdumpNotStarted when mitmdump does not start."""
    return DemoResult(settings, **{name: await _phase(name, settings, screen) for name in _PHASES})


async def _phase(name: str, settings: DemoSettings, screen: "DemoScreen") -> LiveRun:
    @asynccontextmanager
    async def announced(scenario: Scenario, seed: int) -> AsyncIterator[LiveStage]:
        async with _PHASES[name](scenario, seed) as stage:
            screen.began(name)
            yield stage

    run = await live(
        settings.scenario,
        seed=settings.seed,
        within_s=settings.phase_max_s,
        staging=announced,
        watch=screen.ticked,
    )
    screen.ended(run)
    return run


type Watching = Callable[[LiveStage, LiveFleet], Awaitable[None]]
"""Looks on; the fleet ends when it returns."""


async def go_on(settings: DemoSettings, watching: Watching) -> None:
    """A demo's fleet through a real mitmweb, conversation after conversation. Raises MitmdumpNotStarted."""
    async with through_proxy(settings.scenario, settings.seed, web=True) as stage, AsyncExitStack() as stack:
        fleet = LiveFleet(settings.scenario, settings.seed)
        clients = await asyncio.gather(*(agent.connected(stage.route, stack) for agent in fleet.agents))
        working = asyncio.create_task(fleet.keep_on(clients))
        watched = asyncio.ensure_future(watching(stage, fleet))
        try:
            await asyncio.wait((working, watched), return_when=asyncio.FIRST_COMPLETED)
            if working.done():  # it never ends by itself
                working.result()
        finally:
            for task in (working, watched):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


# What one sees ------------------------------------------------------------------------------------------------------


class DemoScreen:
    """Watches a demo on a console: moving lines on a terminal, a line now and then anywhere else."""

    def __init__(self, console: Console, settings: DemoSettings) -> None:
        self._console = console
        self._settings = settings
        self._live: Live | None = None
        self._next_line_s = 0.0

    def began(self, name: str) -> None:
        """A heading; on a terminal what follows it moves."""
        self._console.print()
        self._console.print(_TITLES[name], style="bold")
        self._next_line_s = 0.0
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def ticked(self, counts: LiveCounts) -> None:
        """A terminal's live lines, or one line now and then."""
        turns = self._settings.agents * self._settings.turns
        if self._live is not None:
            self._live.update(_running(counts, turns), refresh=True)
        elif counts.elapsed_s >= self._next_line_s:
            self._next_line_s = counts.elapsed_s + _LINE_EVERY_S
            self._console.print(_line(counts, turns), soft_wrap=True)

    def ended(self, run: LiveRun) -> None:
        """One line, and one for each agent that was lost."""
        self.close()
        self._console.print(
            f"{_alive(run)} agents alive after {run.counts.elapsed_s:.1f} s", style="red" if run.lost else "green"
        )
        for agent, death in run.lost.items():
            self._console.print(f"  {agent}: {death}", style="dim")

    def close(self) -> None:
        """Give the terminal back, whatever happened."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def introduction(settings: DemoSettings) -> str:
    """What will happen."""
    faults = ", ".join(f"{share:.0%} {name}" for name, share in FAULTS.items())
    return (
        f"{settings.agents} agents, {settings.turns} turns each, share one key of a simulated {HOST}. It allows "
        f"{settings.requests} requests, {settings.input_tokens:,} input and {settings.output_tokens:,} output tokens "
        f"per {settings.window_s:g} s ({settings.kind.value}) and {settings.concurrency} calls at once, and it fails: "
        f"{faults}. Each agent re-sends {settings.retries} times, as its SDK does. Real limits are per 60 s: "
        "shorter windows, with limits in proportion, make this short."
    )


def closing(result: DemoResult) -> RenderableType:
    """The table."""
    phases = {"direct": result.direct, "hivemind": result.hivemind}
    turns = result.settings.agents * result.settings.turns
    table = Table(title="one fleet, two ways", title_justify="left")
    table.add_column()
    for name in phases:
        table.add_column(name, justify="right", style="bold")
    rows = (
        ("agents alive", _alive),
        ("turns done", lambda run: f"{run.counts.turns_done} of {turns}"),
        ("requests failed, as agents saw it", lambda run: f"{run.counts.failed} of {run.counts.requests}"),
        ("refused upstream (429, 529)", _refused),
        ("tokens wasted", lambda run: f"{run.wasted_tokens:,}"),
        ("time", lambda run: f"{run.counts.elapsed_s:.1f} s"),
        ("lower bound for what was done", lambda run: f"{run.result.bound.bound_s:.1f} s"),
        ("time ÷ bound", _ratio),
        ("guard trips", lambda run: "-" if run is result.direct else f"{run.guard_trips}"),
    )
    for title, cell in rows:
        table.add_row(title, *(cell(run) for run in phases.values()))
    bounds = "; ".join(f"{name}, {run.result.bound.why}" for name, run in phases.items())
    return Group("", table, Text(f"Lower bound: {bounds}.", style="dim"), "")


def _alive(run: LiveRun) -> str:
    return f"{run.counts.finished} of {run.counts.finished + len(run.lost)}"


def _refused(run: LiveRun) -> str:
    refused, attempts = run.counts.refused, run.counts.attempts
    return f"{refused} of {attempts} ({_share(refused, attempts)})"


def _ratio(run: LiveRun) -> str:
    """Only where the work was done: the dead are fast."""
    bound_s = run.result.bound.bound_s
    return "not done" if run.lost or not bound_s else f"{run.counts.elapsed_s / bound_s:.2f}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _line(counts: LiveCounts, turns: int) -> str:
    return (
        f"{counts.elapsed_s:5.1f} s  {counts.running} running, {counts.finished} finished, {counts.dead} dead; "
        f"{counts.turns_done} of {turns} turns; "
        f"agents: {counts.requests} requests, {counts.failed} failed; "
        f"upstream: {counts.in_flight} in flight, {counts.refused} of {counts.attempts} refused"
    )


def _running(counts: LiveCounts, turns: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("time", f"{counts.elapsed_s:.1f} s")
    grid.add_row(
        "agents",
        Text.assemble(
            (f"{'●' * counts.running}", "cyan"),
            (f"{'●' * counts.finished}", "green"),
            (f"{'✗' * counts.dead}", "red"),
            f"  {counts.running} running, {counts.finished} finished, {counts.dead} dead",
        ),
    )
    bar = Table.grid(padding=(0, 2))
    bar.add_row(ProgressBar(total=turns, completed=counts.turns_done, width=30), f"{counts.turns_done} of {turns}")
    grid.add_row("turns", bar)
    grid.add_row("agents saw", f"{counts.requests} requests, {counts.failed} failed")
    grid.add_row(
        "upstream",
        f"{counts.in_flight} in flight; {counts.refused} of {counts.attempts} attempts refused "
        f"({_share(counts.refused, counts.attempts)})",
    )
    return grid
