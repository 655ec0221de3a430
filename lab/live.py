"""Scenarios on real sockets: whether a real proxy agrees with virtual time, and how agents fare in other ways.

virtual          the scheduler alone, in virtual time (sim/world.py)
hivemind         through a real mitmdump with the addon (sim/live.py)
direct           straight to the provider
PEER             through the proxy of hivemind-scheduler from PyPI, unchanged, with its own defaults; it gets the
                 provider's true concurrency cap

A factor divides all times of a scenario, but not the scheduler's own. So all ways have the same scale, and are compared
with each other only.
"""

import asyncio
import random
import ssl
import subprocess
import sys
import tempfile
import venv
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

import certifi
import click
from msgspec import structs

from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.ticket import Attempt, Hints
from hivemind_addon.proxy.system.stop_signals import end_with_us
from hivemind_addon.sim.agents import Route
from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.live import LiveStage, Staging, live, serving, straight, through_proxy, window_of
from hivemind_addon.sim.mitmdump import MitmdumpNotStarted, end, off_proxies
from hivemind_addon.sim.result import Result
from hivemind_addon.sim.scenario_commands import print_missed, progress, write_or_print
from hivemind_addon.sim.workload import Scenario
from hivemind_addon.sim.world import World
from hivemind_addon.tools.launch.neighbour import free_port
from lab.markdown import markdown_filled, markdown_table

FACTOR = 2.0
"""How many times as fast each runs: backoffs and guards shrink in nobody's program, so the less the fairer."""
LIVE = ("replay-11", "stress")
"""Conversations before limits of a minute, with faults, and a concurrency cap that stays."""
PEER = "hivemind-scheduler"
_VERSION = "0.2.0"
_DEFAULT_CAP, _PORT, _INSTALL_S, _START_S = 5, 8100, 300, 60
_SPARE_S = 30.0
"""A run on a socket takes at most this much longer than three times the virtual time."""
_MORE_LOST = 0.15
"""Of the agents: so many more may be lost on the socket where virtual time loses some, too."""
_MORE_REFUSED, _FEW_REFUSED = 0.02, 6
"""Of all attempts: so many more, and so few more, may be refused on the socket."""
_TIME_APART, _WAY_S, _BACKOFF_S = 0.1, 0.05, 2.0
"""Share by which the time may differ; besides seconds for each turn of a conversation, and where calls fail."""
_COST_APART = 0.1
"""Share by which cost ÷ ideal may differ."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A scaled scenario by all ways."""

    scenario: str
    kind: LimitKind
    virtual: Result
    live: Result
    """Through the addon."""
    guard_trips: int
    """Exceptions of the addon's own."""
    others: Mapping[str, Result] = field(default_factory=dict)

    def disagreements(self, *, time_apart: float = _TIME_APART) -> list[str]:
        """Where socket and virtual time differ by more than the margins, in words."""
        found = []
        live, virtual = self.live, self.virtual
        if self.guard_trips:
            found.append(f"{self.guard_trips} guard trips")
        if live.lost > virtual.lost + (_MORE_LOST * live.agents if virtual.lost else 0):
            found.append(f"{live.lost} agents lost, {virtual.lost} in virtual time: {dict(live.deaths)}")
        more = _refused(live) - _refused(virtual)
        if more > max(_FEW_REFUSED, _MORE_REFUSED * live.attempts):
            found.append(f"{more} more attempts refused than in virtual time, of {live.attempts}")
        spare_s = _WAY_S * max(crowd.turns_done / crowd.agents for crowd in virtual.crowds.values())
        if virtual.statuses[0] or virtual.statuses[502]:
            spare_s += _BACKOFF_S
        if abs(live.stretch / virtual.stretch - 1) > time_apart + spare_s / virtual.makespan_s:
            found.append(f"time ÷ bound {live.stretch:.3f}, {virtual.stretch:.3f} in virtual time")
        if abs(live.cost_ratio / virtual.cost_ratio - 1) > _COST_APART:
            found.append(f"input cost ÷ ideal {live.cost_ratio:.3f}, {virtual.cost_ratio:.3f} in virtual time")
        return [f"{self.scenario}, {self.kind.value}: {words}" for words in found]


def _refused(result: Result) -> int:
    return sum(result.statuses[status] for status in (429, 503, 529))


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """The same scenario with the windows of limits, latencies, think times and patience divided by `factor`."""

    def shorter(times_s: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(time_s / factor for time_s in times_s)

    crowds = tuple(
        replace(
            crowd,
            starts_s=shorter(crowd.starts_s),
            think_s=shorter(crowd.think_s),
            latency_s=crowd.latency_s / factor,
            tokens_per_s=crowd.tokens_per_s * factor,
            timeout_s=crowd.timeout_s / factor,
        )
        for crowd in scenario.crowds
    )
    provider = scenario.provider
    limits = tuple(replace(limit, window_s=limit.window_s / factor) for limit in provider.limits)
    provider = replace(provider, limits=limits, cache_ttl_s=provider.cache_ttl_s / factor)
    return replace(scenario, crowds=crowds, provider=provider, way_s=scenario.way_s / factor)


class _ScaledScheduler(Scheduler):
    """Reads limits for another window, as stated in the profile of the live run."""

    window_s = 60.0

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None:
        readings = tuple(structs.replace(reading, window_s=self.window_s) for reading in hints.readings)
        super().observe(attempt, structs.replace(hints, readings=readings), now, answered=answered)


def virtual(scenario: Scenario, *, seed: int) -> Result:
    """Run a scaled scenario in virtual time."""
    world = World(scenario, seed=seed)
    world.scheduler = scheduler = _ScaledScheduler(rng=random.Random(f"{seed} scheduler"))
    scheduler.window_s = window_of(scenario)
    return world.run()


async def compare(
    scenario: Scenario, kind: LimitKind, *, seed: int, others: Mapping[str, Staging] | None = None
) -> Comparison:
    """A scaled scenario by all ways, at the same time. Raises MitmdumpNotStarted."""
    on = scenario.on(kind)
    expected = virtual(on, seed=seed)
    ways = {"hivemind": through_proxy, **(others or {})}
    within_s = 3 * expected.makespan_s + _SPARE_S
    runs = await asyncio.gather(*(live(on, seed=seed, within_s=within_s, staging=staging) for staging in ways.values()))
    ours, *rest = runs
    results = {way: run.result for way, run in zip(others or {}, rest, strict=True)}
    return Comparison(scenario.name, kind, expected, ours.result, ours.guard_trips, results)


def text_of(comparisons: Sequence[Comparison]) -> str:
    """The table, and whether all agree."""
    rows = []
    for one in comparisons:
        for way, run in {"virtual": one.virtual, "hivemind": one.live, **one.others}.items():
            deaths = ", ".join(f"{why} ({count})" for why, count in sorted(run.deaths.items()))
            # Who dies early is done early.
            time = "" if run.lost else f"{run.stretch:.3f}"
            rows.append(
                f"{one.scenario} | {one.kind.value} | {way} | {run.lost} of {run.agents} | {run.attempts} "
                f"| {_refused(run)} | {time} | {run.cost_ratio:.3f} | {deaths}"
            )
    titles = "Scenario | Limits | Way | Lost | Attempts | Refused | Time ÷ bound | Cost ÷ ideal | Died of"
    apart = [f"- {words}\n" for one in comparisons for words in one.disagreements()]
    verdict = (
        "".join(["Beyond the margins:\n\n", *apart]) if apart else "`hivemind` agrees with `virtual` everywhere.\n"
    )
    return f"{markdown_table(titles, rows)}\n{verdict}"


def prove_live(names: Sequence[str], output: Path | None) -> None:
    """`hivemind lab prove --live`; with a folder it fills live.md there."""
    if unknown := sorted(set(names) - set(LIVE)):
        raise click.BadParameter(f"{unknown[0]!r} does not run live; {', '.join(LIVE)} do", param_hint="--worlds")
    page = output / "live.md" if output else None
    if page and not (page.is_file() and "<!-- measured -->" in page.read_text(encoding="utf-8")):
        cure = "name the folder docs of a checkout"
        raise click.BadParameter(f"{page} has no part <!-- measured --> to fill; {cure}", param_hint="--output")
    end_with_us()
    comparisons = []
    chosen = [name for name in LIVE if not names or name in names]
    try:
        with _peer() as peer, progress(len(chosen) * len(LimitKind)) as done:
            for name in chosen:
                scenario = scaled(cases()[name].scenario, FACTOR)
                for kind in LimitKind:
                    comparisons.append(
                        asyncio.run(compare(scenario, kind, seed=0, others={"direct": straight, **peer}))
                    )
                    done(f"{name}, {kind.value}")
    except MitmdumpNotStarted as error:
        raise click.ClickException(str(error)) from error
    text = text_of(comparisons)
    write_or_print(markdown_filled(page.read_text(encoding="utf-8"), {"measured": text}) if page else text, page)
    missed = [words for one in comparisons for words in one.disagreements()]
    print_missed(missed)
    sys.exit(1 if missed else 0)


@contextmanager
def _peer() -> Iterator[Mapping[str, Staging]]:
    """The way through the peer, installed until the block ends; empty, with a line on stderr, where that fails."""
    with tempfile.TemporaryDirectory(prefix="hivemind-peer-") as name:
        folder = Path(name)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"{PEER}=={_VERSION}"]
        ways: Mapping[str, Staging] = {PEER: partial(through_peer, folder / "bin" / "hivemind")}
        try:
            venv.create(folder, with_pip=True)
            subprocess.run(install, check=True, timeout=_INSTALL_S, capture_output=True, text=True)  # noqa: S603 - ours
        except (OSError, subprocess.SubprocessError) as error:
            words = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
            click.echo(f"{PEER} {_VERSION} cannot be installed: {words}; the rest goes on", err=True)
            ways = {}
        yield ways


@asynccontextmanager
async def through_peer(program: Path, scenario: Scenario, seed: int) -> AsyncIterator[LiveStage]:
    """By the peer's proxy, which speaks plain HTTP behind a base URL. Raises MitmdumpNotStarted."""
    async with serving(scenario, seed) as server:
        with tempfile.TemporaryDirectory(prefix="hivemind-peer-") as folder:
            port = free_port(_PORT) or _PORT
            words = {
                "--port": str(port),
                "--upstream": server.url,
                "--max-concurrency": str(scenario.provider.concurrency or _DEFAULT_CAP),
                "--db": f"{folder}/peer.db",
            }
            process = await asyncio.create_subprocess_exec(
                *(str(program), "--log-level", "WARNING", "proxy", *chain.from_iterable(words.items())),
                cwd=folder,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=STDOUT,
                env=off_proxies(),
                start_new_session=True,
            )
            try:
                await _listens(port, process)
                trust = ssl.create_default_context(cafile=certifi.where())
                yield LiveStage(server, Route(trust, base_url=f"http://127.0.0.1:{port}"))
            finally:
                await end(process)


async def _listens(port: int, process: asyncio.subprocess.Process) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await pause(0.1)
                else:
                    writer.close()
                    return
    raise MitmdumpNotStarted(f"{PEER} {_VERSION} does not listen")
