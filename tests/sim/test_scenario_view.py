import io
import json

import pytest
from rich.console import Console

from hivemind_addon.lab.sim.library import cases
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.policy import Policy
from hivemind_addon.lab.sim.scenario_view import as_json, listing, missed, percent, table
from hivemind_addon.lab.sim.trial import run_series, setups
from tests.cases import over


@pytest.fixture(scope="module")
def series():
    case = cases()["replay-11"]
    return run_series(list(setups(case, [Policy.DIRECT, Policy.HIVEMIND], [LimitKind.WINDOW])), seeds=2)


def printed(renderable, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


@over("width", [80, 120])
def test_the_table_fits_a_terminal(series, width):
    text = printed(table(series), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    direct, ours, blind = text.splitlines()[1:4]
    assert direct.split()[:4] == ["replay-11", "window", "yes", "direct"]
    assert "✓ 4" in ours
    assert blind.split()[2] == "no"


def test_time_is_not_told_where_agents_were_lost(series):
    direct, ours, _ = printed(table(series), 120).splitlines()[1:4]
    assert "-1." not in direct
    assert "-1." in ours


def test_json_has_every_run_and_every_bound(series):
    rows = json.loads(as_json(series))
    assert [row["policy"] for row in rows] == ["direct", "hivemind", "hivemind"]
    assert [run["seed"] for run in rows[1]["runs"]] == [0, 1]
    assert rows[1]["runs"][0]["statuses"]["200"] == 88
    assert rows[0]["expected"] == []
    assert all(expected["met"] for expected in rows[1]["expected"])
    assert as_json(series) == as_json(series)
    assert missed(series) == []


def test_every_scenario_is_listed_with_its_story():
    text = printed(listing(list(cases().values())), 120)
    assert all(name in text for name in cases())
    assert "529 wall stands for two minutes" in text


@over(("part", "whole", "words"), [(0, 9, "0 %"), (1, 200, "0.5 %"), (1, 3, "33 %"), (0, 0, "0 %"), (9, 9, "100 %")])
def test_shares_are_short(part, whole, words):
    assert percent(part, whole) == words
