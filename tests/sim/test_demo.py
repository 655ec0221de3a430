"""The demo: both phases of a small one on sockets, and what people see of it."""

import dataclasses
import io

import pytest
from rich.console import Console

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim import demo
from hivemind_addon.sim.bound import Bound
from hivemind_addon.sim.call import Truth, TruthPart
from hivemind_addon.sim.demo import DemoResult, DemoScreen, DemoSettings, closing, introduction, run_demo
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.live import LiveCounts, LiveRun, straight
from hivemind_addon.sim.result import Result

SMALL = DemoSettings(agents=4, turns=2)
USUAL = DemoSettings()


def run_of(finished=11, guard_trips=0, **counts):
    """A phase of eleven agents, as it may have ended."""
    fields = {field.name: None for field in dataclasses.fields(Result)} | {"bound": Bound(30.0, "8 slots")}
    lost = {f"agent-{number}": "status 529" for number in range(finished, 11)}
    agents = {f"agent-{number}": TruthPart(input_tokens=100, output_tokens=10) for number in range(11)}
    truth = {field.name: 0 for field in dataclasses.fields(Truth)} | {"faults": {}, "agents": agents}
    truth |= {"input_tokens": 1100, "output_tokens": 110, "wasted_input_tokens": 12_000, "wasted_output_tokens": 345}
    usual = {"elapsed_s": 33.0, "turns_done": 77, "requests": 80, "failed": 3, "attempts": 100, "refused": 25}
    return LiveRun(Result(**fields), LiveCounts(finished=finished, **usual | counts), Truth(**truth), lost, guard_trips)


def counts(elapsed_s):
    return LiveCounts(elapsed_s, 5, 4, 2, 40, 50, 9, 60, 12, 6)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=120)


def text_of(console):
    return console.file.getvalue()


@pytest.fixture
def quick(monkeypatch):
    """Both phases without a proxy, and without waiting for anything."""
    monkeypatch.setattr(demo, "_PHASES", {"direct": straight, "hivemind": straight})
    crowd = {"think_s": (0, 0), "latency_s": 1e-3, "tokens_per_s": 1e6, "opening_tokens": (50, 50)}
    scenario = DemoSettings.scenario.fget

    def faster(settings):
        made = scenario(settings)
        return dataclasses.replace(made, crowds=(dataclasses.replace(made.crowds[0], **crowd),))

    monkeypatch.setattr(DemoSettings, "scenario", property(faster))
    return crowd


def test_the_provider_limits_requests_input_and_output():
    provider = DemoSettings(kind=LimitKind.WINDOW).scenario.provider
    assert {limit.dimension for limit in provider.limits} == {
        Dimension.REQUESTS,
        Dimension.INPUT_TOKENS,
        Dimension.OUTPUT_TOKENS,
    }
    assert {limit.kind for limit in provider.limits} == {LimitKind.WINDOW}


async def test_the_numbers_of_both_phases_add_up(quick, console):
    settings = dataclasses.replace(SMALL, seed=3)
    result = await run_demo(settings, DemoScreen(console, settings))
    for run in (result.direct, result.hivemind):
        counts = run.counts
        assert counts.finished + len(run.lost) == 4
        assert counts.requests == counts.attempts
        assert counts.failed == counts.requests - counts.turns_done
        assert run.lost or counts.elapsed_s >= run.result.bound.bound_s
    assert result.direct.truth.faults == result.hivemind.truth.faults
    assert "direct: every agent for itself" in text_of(console)
    assert f"{result.direct.counts.finished} of 4 agents alive" in text_of(console)


async def test_without_trouble_nothing_is_wasted_and_everybody_lives(quick, console, monkeypatch):
    monkeypatch.setattr(demo, "FAULTS", {})
    result = await run_demo(SMALL, DemoScreen(console, SMALL))
    assert result.kept_its_promise
    assert (result.hivemind.counts.turns_done, result.hivemind.counts.failed, result.hivemind.wasted_tokens) == (
        8,
        0,
        0,
    )


async def test_the_tokens_of_the_dead_are_wasted(quick, console, monkeypatch):
    monkeypatch.setattr(demo, "FAULTS", {"error-in-the-middle": 1.0})
    result = await run_demo(SMALL, DemoScreen(console, SMALL))
    assert not result.kept_its_promise
    assert result.hivemind.counts.turns_done == 0
    assert set(result.hivemind.lost.values()) == {"overloaded_error in a stream"}
    assert result.hivemind.wasted_tokens > 0
    assert "agent-3: overloaded_error in a stream" in text_of(console)


async def test_agents_that_never_come_to_an_end_are_lost(quick, console):
    quick["think_s"] = (3600, 3600)
    settings = dataclasses.replace(SMALL, phase_max_s=0.05)
    result = await run_demo(settings, DemoScreen(console, settings))
    assert result.direct.counts.finished == 0
    assert set(result.hivemind.lost.values()) == {"not done after 0.05 s"}
    assert text_of(console).count("not done after 0.05 s") == 8


def test_without_a_terminal_there_is_a_line_every_five_seconds(console):
    screen = DemoScreen(console, USUAL)
    screen.began("direct")
    for tenths in range(0, 120, 5):
        screen.ticked(counts(tenths / 10))
    assert text_of(console).count("40 of 77 turns") == text_of(console).count("12 of 60 refused") == 3
    assert "\x1b" not in text_of(console)


def test_on_a_terminal_the_lines_move_and_the_cursor_comes_back():
    terminal = Console(file=io.StringIO(), width=120, force_terminal=True)
    screen = DemoScreen(terminal, USUAL)
    screen.began("direct")
    screen.ticked(counts(1.0))
    assert "5 running, 4 finished, 2 dead" in text_of(terminal)
    screen.close()
    assert text_of(terminal).rindex("\x1b[?25h") > text_of(terminal).rindex("\x1b[?25l")


def test_the_closing_table_has_every_number_for_both_ways(console):
    console.print(closing(DemoResult(USUAL, run_of(4, turns_done=41), run_of(failed=0, refused=1))))
    for expected in (
        "4 of 11",
        "41 of 77",
        "3 of 80",
        "25 of 100 (25%)",
        "1 of 100 (1%)",
        "13,115",
        "12,345",
        "33.0 s",
        "30.0 s",
        "not done",
        "1.10",
    ):
        assert expected in text_of(console)


def test_the_introduction_says_what_is_unlike_the_real_thing():
    assert "Real limits are per 60 s" in introduction(USUAL)
    assert "8% 502" in introduction(USUAL)
