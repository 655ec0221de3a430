"""How a demo looks: alive on a terminal, as lines anywhere else, and its closing table."""

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hivemind_addon.lab.sim.agents import HOST
from hivemind_addon.lab.sim.demo import FAULTS, DemoResult, DemoSettings, PhaseName, PhaseResult, Progress

_LINE_EVERY_S = 5.0
_TITLES = {
    PhaseName.DIRECT: "direct: every agent for itself",
    PhaseName.HIVEMIND: "hivemind: the same agents through mitmdump -s hivemind_addon",
}
NEXT_STEP = (
    "Before real agents: `make run`, then "
    "HTTPS_PROXY=http://agent-1:x@127.0.0.1:8080 NODE_EXTRA_CA_CERTS=~/.mitmproxy/mitmproxy-ca-cert.pem claude"
)
"""One line; not to be wrapped, since it is there to be copied."""


class DemoScreen:
    """Watches a demo on a console; implements `sim.demo.Screen`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._next_line_s = 0.0

    def began(self, name: PhaseName) -> None:
        """A heading; on a terminal what follows it moves."""
        self._console.print()
        self._console.print(_TITLES[name], style="bold")
        self._next_line_s = 0.0
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def ticked(self, progress: Progress) -> None:
        """A terminal's live lines, or one line now and then."""
        if self._live is not None:
            self._live.update(_running(progress), refresh=True)
        elif progress.elapsed_s >= self._next_line_s:
            self._next_line_s = progress.elapsed_s + _LINE_EVERY_S
            self._console.print(_line(progress), soft_wrap=True)

    def ended(self, result: PhaseResult) -> None:
        """One line."""
        self.close()
        self._console.print(
            f"{_alive(result)} agents alive after {result.elapsed_s:.1f} s",
            style="green" if result.alive == result.agents else "red",
        )
        for agent, death in result.deaths.items():
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
        f"{settings.agents} agents, {settings.habits.turns} turns each, share one key of a simulated {HOST}. It allows "
        f"{settings.requests} requests, {settings.input_tokens:,} input and {settings.output_tokens:,} output tokens "
        f"per {settings.window_s:g} s ({settings.kind.value}) and {settings.concurrency} calls at once, and it fails: "
        f"{faults}. Each agent re-sends {settings.habits.retries} times, as its SDK does. Real limits are per 60 s: "
        "shorter windows, with limits in proportion, make this short."
    )


def closing(result: DemoResult) -> RenderableType:
    """The table."""
    table = Table(title="one fleet, two ways", title_justify="left")
    table.add_column()
    for phase in (result.direct, result.hivemind):
        table.add_column(phase.name.value, justify="right", style="bold")
    rows = (
        ("agents alive", _alive),
        ("turns done", lambda phase: f"{phase.turns_done} of {phase.turns}"),
        ("requests failed, as agents saw it", lambda phase: f"{phase.failed} of {phase.requests}"),
        ("refused upstream (429, 529)", _refused),
        ("tokens wasted", lambda phase: f"{phase.wasted_tokens:,}"),
        ("time", lambda phase: f"{phase.elapsed_s:.1f} s"),
        ("lower bound for what was done", lambda phase: f"{phase.bound.bound_s:.1f} s"),
        ("time ÷ bound", _ratio),
        ("guard trips", lambda phase: "-" if phase.name is PhaseName.DIRECT else f"{phase.guard_trips}"),
    )
    for title, cell in rows:
        table.add_row(title, cell(result.direct), cell(result.hivemind))
    return Group("", table, Text(f"Lower bound: {_bounds(result)}.", style="dim"), "")


def _alive(phase: PhaseResult) -> str:
    return f"{phase.alive} of {phase.agents}"


def _refused(phase: PhaseResult) -> str:
    return f"{phase.refused} of {phase.attempts} ({_share(phase.refused, phase.attempts)})"


def _ratio(phase: PhaseResult) -> str:
    """Only where the work was done: the dead are fast."""
    if phase.alive < phase.agents or not phase.bound.bound_s:
        return "not done"
    return f"{phase.elapsed_s / phase.bound.bound_s:.2f}"


def _bounds(result: DemoResult) -> str:
    return "; ".join(f"{phase.name.value}, {phase.bound.why}" for phase in (result.direct, result.hivemind))


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _line(progress: Progress) -> str:
    return (
        f"{progress.elapsed_s:5.1f} s  {progress.running} running, {progress.finished} finished, {progress.dead} dead; "
        f"{progress.turns_done} of {progress.turns} turns; "
        f"agents: {progress.requests} requests, {progress.failed} failed; "
        f"upstream: {progress.in_flight} in flight, {progress.refused} of {progress.attempts} refused"
    )


def _running(progress: Progress) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("time", f"{progress.elapsed_s:.1f} s")
    grid.add_row(
        "agents",
        Text.assemble(
            (f"{'●' * progress.running}", "cyan"),
            (f"{'●' * progress.finished}", "green"),
            (f"{'✗' * progress.dead}", "red"),
            f"  {progress.running} running, {progress.finished} finished, {progress.dead} dead",
        ),
    )
    turns = Table.grid(padding=(0, 2))
    turns.add_row(
        ProgressBar(total=progress.turns, completed=progress.turns_done, width=30),
        f"{progress.turns_done} of {progress.turns}",
    )
    grid.add_row("turns", turns)
    grid.add_row("agents saw", f"{progress.requests} requests, {progress.failed} failed")
    grid.add_row(
        "upstream",
        f"{progress.in_flight} in flight; {progress.refused} of {progress.attempts} attempts refused "
        f"({_share(progress.refused, progress.attempts)})",
    )
    return grid
