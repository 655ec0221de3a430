"""One row a pool."""

import json

import pytest
from click.testing import CliRunner

from hivemind_addon.api.snapshot import LearnedView, MeterView, WallView, WindowView
from hivemind_addon.api.ticket import PoolKey
from hivemind_addon.tools.cli import main
from tests.commands.served import serving
from tests.dash.record import recorded
from tests.dash.samples import KEY, pool, pool_tally, report

pytestmark = pytest.mark.usefixtures("folders")
OTHER = PoolKey("other.test", "key-2", "small")


def run(*arguments, width=160):
    return CliRunner().invoke(main, ["pools", *arguments], env={"COLUMNS": str(width)})


REPORT = report(
    pool(
        in_flight=3,
        cap=4,
        queued=7,
        meters=(MeterView("requests", "bucket", 50, 40, 12.0),),
        windows=(WindowView("5h", 0.62, "allowed", 3600.0, None),),
        learned=(LearnedView("ceiling", "3 at a time"),),
    ),
    pool(OTHER, paused=True),
    tallies=(pool_tally(delivered=12, wait_p50_s=1.0, wait_p95_s=30.0),),
)


def test_programs_get_everything():
    with serving(REPORT):
        busy, idle = json.loads(run("--json").stdout)
    assert (busy["pool"], busy["state"], busy["in_flight"], busy["limit"], busy["cap"]) == (str(KEY), "busy", 3, 4, 4)
    assert busy["meters"][0] | {"name": "requests", "level": 40, "limit": 50} == busy["meters"][0]
    assert (busy["delivered"], busy["wait_p95_s"], busy["learned"][0]["text"]) == (12, 30.0, "3 at a time")
    assert (idle["state"], idle["paused"], idle["wait_p50_s"]) == ("paused", True, None)


def test_people_get_words():
    with serving(REPORT):
        printed = run().stdout
    assert "api.test/key-1/large   busy   3/4 =4" in printed
    for words in ("1 s / 30 s", "requests 40/50", "5h 62% used, anew in 1 h 0 min", "3 at a time"):
        assert words in printed


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"wall": WallView("five hours", 7200)}, "spent for 2 h 0 min: five hours"),
        ({"breaker": "open", "breaker_tries_in_s": 9.0}, "provider down, tries in 9 s"),
        ({"breaker": "half open"}, "provider down"),
        ({"blocked_for_s": 20.0}, "told to wait 20 s"),
        ({}, "idle"),
    ],
)
def test_what_keeps_it_is_its_state(changes, state):
    with serving(report(pool(**changes))):
        assert json.loads(run("--json").stdout)[0]["state"] == state


def test_a_host_chooses_and_an_unknown_one_is_told_what_there_is():
    with serving(REPORT):
        assert len(json.loads(run("other.test", "--json").stdout)) == 1
        assert run("*small", "--csv").stdout.splitlines()[1].startswith("other.test/key-2/small,paused,0,4,,0,True")
        result = run("nowhere")
    assert result.exit_code == 1
    assert result.stderr == f"Error: no pool 'nowhere'; there are {KEY}, {OTHER}\n"


def test_where_nothing_was_sent_that_is_said():
    with serving(report()):
        assert run().stdout == "nothing was sent to any provider yet\n"


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("name", ["night", "incident", "steered"])
def test_it_fits_the_terminal(name, width):
    with serving(recorded(name)):
        assert max(map(len, run(width=width).stdout.splitlines())) <= width
