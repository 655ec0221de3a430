"""Fleets in virtual time whose reports are kept in tests/tools/dash/data: the real scheduler, provider and stats.

Recorded anew by `python -m tests.tools.dash.record`, from the checkout. The picture in the README is one of them.
"""

import asyncio
from dataclasses import replace
from datetime import UTC
from io import StringIO
from pathlib import Path
from re import DOTALL, sub

import msgspec
from msgspec import structs
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from hivemind_addon.kernel.budget import cost_of
from hivemind_addon.kernel.values.command import Pause, SetLimit, SetPriority
from hivemind_addon.kernel.values.snapshot import SCHEMA_VERSION
from hivemind_addon.kernel.values.spend import Budget, Period, Price, Scope, Spend
from hivemind_addon.kernel.values.ticket import Dimension, PoolKey, Priority, Usage
from hivemind_addon.proxy.api.control import decode_report
from hivemind_addon.proxy.api.pool_words import with_words
from hivemind_addon.proxy.api.replies import in_words
from hivemind_addon.proxy.api.report import ProxyView, Report
from hivemind_addon.proxy.record.history import Histories
from hivemind_addon.proxy.record.news import News
from hivemind_addon.proxy.record.stats import Stats
from hivemind_addon.proxy.record.sums import Sums
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings
from hivemind_addon.sim.workload import Crowd, Scenario
from hivemind_addon.sim.world import World
from hivemind_addon.tools.dash.live import Top
from hivemind_addon.tools.dash.picture import PictureLook

DATA = Path(__file__).parent / "data"
_BEGAN = 1_800_000_000.0
_SONNET = Price(input=3_000_000, cache_write=3_750_000, cache_read=300_000, output=15_000_000)
_HAIKU = Price(input=1_000_000, cache_write=1_250_000, cache_read=100_000, output=5_000_000)
_BUDGETS = {
    "reviewer": (
        Budget(Scope.AGENT, "reviewer-1", micro_usd=2_000_000),
        Budget(Scope.GROUP, "night", Period.DAY, micro_usd=20_000_000),
    ),
    "nightly": (Budget(Scope.GROUP, "night", Period.DAY, micro_usd=20_000_000),),
}
_TALK = {
    "think_s": (2, 9),
    "latency_s": 1.5,
    "output_tokens": (100, 800),
    "tokens_per_s": 60.0,
    "prompt_tokens": (300, 3000),
    "caches": True,
    "streamed": True,
    "timeout_s": 600.0,
    "retries": 2,
}


def limits(requests: int, into: int, out: int) -> tuple[Limit, ...]:
    """Per minute."""
    return (
        Limit(Dimension.REQUESTS, requests, 60.0, LimitKind.BUCKET),
        Limit(Dimension.INPUT_TOKENS, into, 60.0, LimitKind.BUCKET),
        Limit(Dimension.OUTPUT_TOKENS, out, 60.0, LimitKind.BUCKET),
    )


NIGHT = Scenario(
    "night",
    (
        Crowd("lead", 1, opening_tokens=(9_000, 9_000), **_TALK),
        Crowd("worker", 6, parent_session="lead-0", shared_tokens=24_000, opening_tokens=(500, 2000), **_TALK),
        Crowd("reviewer", 3, opening_tokens=(40_000, 70_000), **_TALK),
        Crowd("nightly", 8, per_session=4, opening_tokens=(20_000, 40_000), **_TALK),
        Crowd("scout", 3, opening_tokens=(800, 3000), **_TALK),
    ),
    ProviderSettings(
        limits=limits(60, 260_000, 24_000), concurrency=9, faults={"502": 0.03, "hang": 0.01}, cache_ttl_s=300.0
    ),
    duration_s=900.0,
)
INCIDENT = replace(
    NIGHT,
    name="incident",
    provider=replace(NIGHT.provider, outages=(ProviderOutage(500, 900),)),
    duration_s=560.0,
)
CROWD = Scenario(
    "crowd",
    (Crowd("agent", 500, opening_tokens=(2_000, 9_000), **_TALK),),
    ProviderSettings(limits=limits(600, 900_000, 90_000), concurrency=40),
    duration_s=240.0,
)


class Fleet(World):
    """A world whose agents have names, models, prices and budgets as people's have."""

    def _ticket(self, call):
        ticket = super()._ticket(call)
        crowd = call.agent.crowd.name
        small = crowd == "scout"
        model = "claude-haiku-4-5" if small else "claude-sonnet-4-5"
        price = _HAIKU if small else _SONNET
        demand = ticket.demand
        usage = Usage(demand.input_tokens, ticket.cached_tokens, output_tokens=demand.output_tokens)
        cost = cost_of(usage, price)
        return structs.replace(
            ticket,
            pool=PoolKey("api.anthropic.com", "acme", model.rpartition("-4-5")[0]),
            agent="nightly" if crowd == "nightly" else ticket.agent,
            session=call.agent.name if crowd == "worker" else ticket.session,
            model=model,
            price=price,
            priority={"lead": Priority.HIGH, "nightly": Priority.LOW}.get(crowd, Priority.NORMAL),
            budgets=tuple(
                budget
                for budget in _BUDGETS.get(crowd, ())
                if budget.scope is not Scope.AGENT or budget.name == ticket.agent
            ),
            expected=Spend(demand.input_tokens + ticket.cached_tokens + demand.output_tokens, cost),
        )


def record(scenario, *commands, seed=3, watch=None):
    """The report at the scenario's end; `commands` are carried out before its last part.

    `watch` gets the report of every tenth second.
    """
    world, sums, histories = Fleet(scenario, seed=seed), Sums(), Histories()
    stats, news = Stats(sums), News(histories.agent_of)
    drain = world.scheduler.drain_events

    def drained():
        events = [in_words(event) for event in drain()]
        for event in events:
            news(event)
            sums(event)
            histories(event)
        return events

    def look():
        watch(_report(world, stats, news))
        world.agenda.after(10, look)

    world.scheduler.drain_events = drained
    steered_at = scenario.duration_s * 0.97
    for command in commands:
        world.agenda.at(steered_at, world.scheduler.command, command, steered_at)
    if watch:
        world.agenda.at(0, look)
    world.run()
    return _report(world, stats, news)


def _report(world, stats, news):
    proxy = ProxyView(
        pid=4711,
        port=8080,
        listens=("127.0.0.1:8080",),
        confdir="~/.mitmproxy",
        hosts=("api.anthropic.com",),
        version="0.1.0",
        began_wall=_BEGAN,
        web="http://127.0.0.1:8081/",
    )
    snapshot = world.scheduler.snapshot(world.now)
    return Report(
        version=SCHEMA_VERSION,
        proxy=proxy,
        snapshot=structs.replace(snapshot, pools=tuple(map(with_words, snapshot.pools))),
        stats=stats.view(world.now, news.lines(world.now)),
        told_wall=_BEGAN + world.now,
    )


RECORDED = {
    "night": lambda: record(NIGHT),
    "incident": lambda: record(INCIDENT),
    "steered": lambda: record(
        NIGHT, SetLimit(5, "*/claude-sonnet"), Pause("*/claude-haiku"), SetPriority("lead*", Priority.CRITICAL)
    ),
}


_THEME = TerminalTheme(
    (24, 27, 33),
    (208, 212, 220),
    [
        (24, 27, 33),
        (224, 108, 96),
        (126, 190, 120),
        (229, 179, 84),
        (97, 158, 232),
        (190, 140, 220),
        (86, 182, 194),
        (208, 212, 220),
    ],
    [
        (92, 99, 112),
        (224, 108, 96),
        (126, 190, 120),
        (240, 200, 110),
        (120, 175, 245),
        (205, 160, 235),
        (110, 200, 210),
        (240, 242, 245),
    ],
)
"""Colours for the SVG: dark, calm, and with enough contrast for small print."""

IMAGE = Path(__file__).parents[3] / "docs" / "images" / "top.svg"


def recorded(name):
    """A report as it was kept."""
    return decode_report((DATA / f"{name}.json").read_bytes(), name)


class OneReport:
    """A feed that has one report to tell."""

    def __init__(self, report):
        self._report = report

    async def news(self):
        yield self._report

    def close(self):
        """There is nothing to end."""


async def image():
    """The picture of the README: the live screen itself, with the next agent that waits selected."""
    app = Top(OneReport(recorded("night")), clock=SystemClock(), look=PictureLook(zone=UTC))
    console = Console(record=True, width=120, file=StringIO(), force_terminal=True, color_system="truecolor")
    async with app.run_test(size=(120, 38)) as pilot:
        await pilot.pause()
        await pilot.press("j", "j")
        await pilot.pause()
        console.print(Text("\n").join(_as_text(strip) for strip in app.screen._compositor.render_strips()))
    text = console.export_svg(title="hivemind top", theme=_THEME, unique_id="hivemind-top")
    # Whoever opens the file is not to fetch a font from somewhere.
    return sub(r"@font-face \{.*?\}", "", text, flags=DOTALL).replace(
        "Fira Code,", "ui-monospace,Menlo,Consolas,DejaVu Sans Mono,"
    )


def _as_text(strip):
    return Text.assemble(*((segment.text, segment.style or "") for segment in strip), no_wrap=True, end="")


def main():
    DATA.mkdir(exist_ok=True)
    for name, make in RECORDED.items():
        (DATA / f"{name}.json").write_bytes(msgspec.json.encode(make()) + b"\n")
    IMAGE.write_text(asyncio.run(image()))


if __name__ == "__main__":
    main()
