import io

import pytest
from rich.console import Console

from hivemind_addon.lab.sim.bound import Bound
from hivemind_addon.lab.sim.demo import DemoResult, DemoSettings, PhaseName, PhaseResult, Progress
from hivemind_addon.lab.sim.demo_view import DemoScreen, closing, introduction


def phase(name, **changes):
    values = {
        "name": name,
        "agents": 11,
        "alive": 11,
        "deaths": {},
        "turns_done": 77,
        "turns": 77,
        "requests": 80,
        "failed": 3,
        "attempts": 100,
        "refused": 25,
        "faults": {},
        "peak_in_flight": 8,
        "wasted_tokens": 12345,
        "elapsed_s": 33.0,
        "bound": Bound(30.0, "8 slots"),
        "guard_trips": 0,
    }
    return PhaseResult(**values | changes)


def progress(elapsed_s):
    return Progress(PhaseName.DIRECT, elapsed_s, 5, 4, 2, 40, 77, 50, 9, 60, 12, 6)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=120)


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), width=120, force_terminal=True)


def text_of(console):
    return console.file.getvalue()


def test_without_a_terminal_there_is_a_line_every_five_seconds(console):
    screen = DemoScreen(console)
    screen.began(PhaseName.DIRECT)
    for tenths in range(0, 120, 5):
        screen.ticked(progress(tenths / 10))
    assert text_of(console).count("12 of 60 refused") == 3
    assert "\x1b" not in text_of(console)


def test_on_a_terminal_the_lines_move_and_the_cursor_comes_back(terminal):
    screen = DemoScreen(terminal)
    screen.began(PhaseName.DIRECT)
    screen.ticked(progress(1.0))
    assert "5 running, 4 finished, 2 dead" in text_of(terminal)
    screen.close()
    assert text_of(terminal).rindex("\x1b[?25h") > text_of(terminal).rindex("\x1b[?25l")


def test_the_dead_are_named_at_the_end_of_a_phase(console):
    screen = DemoScreen(console)
    screen.ended(phase(PhaseName.DIRECT, alive=10, deaths={"agent-3": "status 529"}))
    assert "10 of 11 agents alive after 33.0 s" in text_of(console)
    assert "agent-3: status 529" in text_of(console)


def test_the_closing_table_has_every_number_for_both_ways(console):
    direct = phase(PhaseName.DIRECT, alive=4, turns_done=41)
    console.print(closing(DemoResult(DemoSettings(), direct, phase(PhaseName.HIVEMIND, failed=0, refused=1))))
    text = text_of(console)
    for expected in (
        "4 of 11",
        "41 of 77",
        "3 of 80",
        "25 of 100 (25%)",
        "1 of 100 (1%)",
        "12,345",
        "33.0 s",
        "30.0 s",
    ):
        assert expected in text
    assert "1.10" in text


def test_the_speed_of_a_phase_that_lost_agents_is_not_compared(console):
    dead = phase(PhaseName.DIRECT, alive=1)
    console.print(closing(DemoResult(DemoSettings(), dead, dead)))
    assert text_of(console).count("not done") == 2


def test_the_introduction_says_what_is_unlike_the_real_thing():
    assert "Real limits are per 60 s" in introduction(DemoSettings())
    assert "8% 502" in introduction(DemoSettings())
