import io

import pytest
from rich.console import Console

from hivemind_addon.lab.replay.limits import given_limit
from hivemind_addon.lab.replay.view import what_if_view
from hivemind_addon.lab.replay.whatif import what_if
from hivemind_addon.lab.sim.policy import Policy
from tests.cases import over
from tests.replay.nights import fleet


def shown(replay, width=80):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(what_if_view(replay, "night.hivemind", width))
    return console.file.getvalue()


@pytest.fixture(scope="module")
def strict():
    return what_if(fleet(12, 6), given=[given_limit("requests=20/min")], copies=2)


def test_the_first_lines_say_what_was_replayed_and_who_would_have_finished(strict):
    lines = shown(strict, 200).splitlines()
    assert lines[0] == "night.hivemind: 12 agents, 2 times, 144 turns"
    assert lines[1] == "api.anthropic.com/key-1/claude-sonnet: requests=20/min:bucket"
    assert lines[3].startswith("direct: 2")
    assert "agents would have been lost (429 rate_limit_error" in lines[3]
    assert lines[7].startswith("hivemind: all 24 agents would have finished, in ")
    assert "nothing beats " in lines[7]


@over("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(strict, width):
    text = shown(strict, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    assert text.count("finished  ") == (2 if width == 60 else 1)


def test_who_died_early_was_not_fast(strict):
    rows = {line.split("  ")[0]: line for line in shown(strict).splitlines()}
    assert rows["time"].count("not done") == 2
    assert rows["time ÷ bound"].split()[3:6] == ["-", "-", "-"]  # what was recorded has no bound


def test_an_agent_alone_is_spoken_of_as_one():
    text = shown(what_if(fleet(1, 1), policies=[Policy.HIVEMIND]))
    assert "night.hivemind: 1 agent, 1 turn\n" in text
    assert "hivemind: the agent would have finished" in text
