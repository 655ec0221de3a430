"""What a running proxy does now: pictures and tables for people (golden/), rows for programs."""

import csv
import io
import json
import os
import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hivemind_addon.kernel.values.command import ForeseeWait
from hivemind_addon.kernel.values.snapshot import AccountBlockView, BudgetView, LearnedView, MeterView, WindowView
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import PoolKey, Usage
from hivemind_addon.proxy.api.command import CommandReply, WaitView
from hivemind_addon.proxy.api.report import LogLine
from hivemind_addon.tools.cli import main
from tests.tools.commands.served import serving
from tests.tools.dash.record import DATA, recorded
from tests.tools.dash.samples import KEY, flying, pool, pool_tally, report, session, waiting

pytestmark = pytest.mark.usefixtures("folders")
NIGHT = str(DATA / "night.json")
OTHER = PoolKey("other.test", "key-2", "small")
BUDGETS = (
    BudgetView(Budget(Scope.AGENT, "a", Period.DAY, tokens=1500), Spend(900, 0), Spend(), 60.0, added=Spend(500, 0)),
    BudgetView(Budget(Scope.AGENT, "a", Period.RUN, micro_usd=9_000_000), Spend(0, 1_000_000), Spend(), None),
    BudgetView(Budget(Scope.GROUP, "a", tokens=1), Spend(), Spend(), None),
)
REPORT = report(
    pool(
        in_flight=3,
        cap=4,
        queued=7,
        meters=(MeterView("requests", "bucket", 50, 40, 12.0),),
        windows=(WindowView("5h", 0.62, "allowed", 3600.0, None),),
        learned=(LearnedView("ceiling", "3 at a time"),),
        tickets=(flying("t1", agent="a"), waiting("t2", agent="a", starts_in_s=12.0), waiting("t3", agent="b")),
    ),
    pool(OTHER, paused=True),
    stats_by_key=(pool_tally(delivered=12, wait_p50_s=1.0, wait_p95_s=30.0),),
    sessions=(
        session("a", usage=Usage(input_tokens=10, cache_read_tokens=20, output_tokens=5), micro_usd=2_500_000, lost=1),
        session("old", is_priced=False, seen_ago_s=90.0, refused=2),
    ),
    budgets=BUDGETS,
    log=(LogLine(5, "WARNING", "guard: odd", None, None),),
)
VIEWS = [
    WaitView("api.test/k/large", 34.2, 4, "rate limit"),
    WaitView("api.test/k/small", 0.0, 0, ""),
    WaitView("b.test/k/m", None, 0, "paused by a person"),
    WaitView("c.test/k/m", None, 0, ""),
    WaitView("d.test/k/m", 2.0, 0, "concurrency limit"),
]


def run(*arguments, width=160, **environment):
    return CliRunner().invoke(main, arguments, env={"COLUMNS": str(width)} | environment)


def said(*arguments, width=160):
    result = run(*arguments, width=width)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(*arguments):
    return json.loads(said(*arguments, "--json"))


def foreseen(*views):
    return lambda _: CommandReply(done=True, text="in words", value=msgspec.to_builtins(views))


@pytest.mark.parametrize("command", ["status", "status agents", "status pools"])
def test_people_get_words(golden, command):
    with serving(REPORT):
        golden(f"{command.split()[-1]}.txt", said(*command.split()))


def test_when_a_call_would_go_is_one_line_a_pool(golden):
    with serving(report(), answer=foreseen(*VIEWS)) as asked:
        golden(
            "wait.txt",
            said("eta", "me", "--pool", "*.test", "--session", "s", "--input-tokens", "900", "--output-tokens", "7"),
        )
    assert asked == [ForeseeWait("me", session="s", pool="*.test", input_tokens=900, output_tokens=7)]


def test_where_nothing_was_asked_that_is_said():
    with serving(report(), answer=foreseen()):
        assert said("status", "agents") == "no agent has asked for anything yet\n"
        assert said("status", "pools") == "nothing was sent to any provider yet\n"
        assert said("eta", "me") == "in words\n"
        assert rows("status", "agents", "x") == rows("status", "pools", "x") == []


@pytest.mark.parametrize("name", ["night", "incident", "steered"])
def test_tables_fit_the_terminal(name):
    with serving(recorded(name)):
        for command in ("status agents", "status pools", "status"):
            for width in (80, 100, 160):
                assert max(map(len, said(*command.split(), width=width).splitlines())) <= width, (command, width)


def test_programs_get_numbers_of_agents():
    with serving(REPORT):
        a, b, old = rows("status", "agents")
        table = list(csv.DictReader(io.StringIO(said("status", "agents", "--csv"))))
    wanted = {"state": "queued", "running": 1, "waiting": 1, "starts_in_s": 12.0, "priority": "normal", "lost": 1}
    wanted |= {"input_tokens": 30, "cached_tokens": 20, "output_tokens": 5, "usd": 2.5}
    wanted["budgets"] = [
        {"per": "day", "tokens_left": 600, "renews_in_s": 60.0},
        {"per": "run", "usd_left": 8.0, "renews_in_s": None},
    ]
    assert {key: a[key] for key in wanted} == wanted
    assert (b["starts_in_s"], b["reason"]) == (None, "rate limit")
    assert (old["state"], old["seen_ago_s"], old["all_priced"]) == ("idle", 90.0, False)
    assert (old["lost"], old["refused"]) == (0, 2), "a refusal is no loss"
    assert [row["agent"] for row in table] == ["a", "b", "old"]
    assert (table[0]["usd"], table[1]["starts_in_s"], list(table[0])) == ("2.5", "", list(a))


def test_programs_get_numbers_of_pools():
    with serving(REPORT):
        busy, idle = rows("status", "pools")
        table = list(csv.DictReader(io.StringIO(said("status", "pools", "*small", "--csv"))))
    assert (busy["pool"], busy["state"], busy["in_flight"], busy["limit"], busy["cap"]) == (str(KEY), "busy", 3, 4, 4)
    assert busy["meters"][0] | {"name": "requests", "level": 40, "limit": 50} == busy["meters"][0]
    assert (busy["delivered"], busy["wait_p95_s"], busy["learned"][0]["text"]) == (12, 30.0, "3 at a time")
    assert (idle["state"], idle["paused"], idle["wait_p50_s"]) == ("paused by a person", True, None)
    assert [(row["pool"], row["paused"], row["meters"]) for row in table] == [(str(OTHER), "True", "[]")]


def test_programs_get_numbers_of_a_wait():
    with serving(report(), answer=foreseen(VIEWS[0])):
        assert rows("eta", "me") == [
            {"pool": "api.test/k/large", "starts_in_s": 34.2, "before": 4, "reason": "rate limit", "why": ""}
        ]
        assert said("eta", "me", "--csv").splitlines()[1] == "api.test/k/large,34.2,4,rate limit,"


def test_a_pattern_chooses_and_one_that_means_nobody_names_what_there_is():
    with serving(REPORT):
        assert [row["agent"] for row in rows("status", "agents", "?")] == ["a", "b"]
        assert len(rows("status", "pools", "other.test")) == 1
        for command, error in {
            "agents": "no agent 'nobody'; there are a, b, old",
            "pools": f"no pool 'nobody'; there are {KEY}, {OTHER}",
        }.items():
            result = run("status", command, "nobody")
            assert (result.exit_code, result.stderr) == (1, f"Error: {error}\n")


def test_inside_of_an_agent_it_is_the_agent_that_is_meant():
    with serving(report(), answer=foreseen(VIEWS[1]), port=9090) as asked:
        assert run("eta", HIVEMIND_AGENT="reviewer", HIVEMIND_PORT="9090").exit_code == 0
    assert asked == [ForeseeWait("reviewer")]
    result = run("eta")
    assert result.exit_code == 2
    assert "Missing argument 'AGENT'" in result.stderr


def test_what_the_proxy_refuses_is_an_error():
    with serving(report(), answer=lambda _: CommandReply(done=False, text="no pool 'x'; there are y")):
        result = run("eta", "me", "--pool", "x")
    assert (result.exit_code, result.stderr) == (1, "Error: no pool 'x'; there are y\n")


@pytest.mark.parametrize("command", ["status agents --json", "status pools", "status", "top"])
def test_no_proxy_is_one_line(command):
    result = run(*command.split())
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: no proxy serves port 8080; start it with `hivemind run`\n"


def test_a_kept_report_is_shown_as_wide_as_columns_say_and_comes_out_as_it_went_in(tmp_path):
    for width in (80, 200):
        shown = said("top", "--snapshot", NIGHT, width=width).splitlines()
        assert max(map(len, shown)) == width
        assert any("├ worker-0" in line for line in shown)
    kept = tmp_path / "again.json"
    kept.write_text(said("top", "--snapshot", NIGHT, "--json"))
    assert said("top", "--snapshot", str(kept), "--json") == kept.read_text()


def test_what_a_terminal_cannot_show_is_no_error():
    command = [sys.executable, "-m", "hivemind_addon", "top", "--snapshot", NIGHT]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b" in flight" in done.stdout


def test_top_prints_one_picture_where_there_is_no_terminal():
    with serving(recorded("incident")):
        assert "what happened" in said("top")
        assert "what happened" not in said("status")


def test_status_shows_each_proxy_or_the_one_that_is_named():
    with serving(report(), port=9090), serving(report(), port=9091):
        assert said("status").count("hivemind 1.2.3") == 2
        assert run("status", HIVEMIND_PORT="9091").output.count("hivemind 1.2.3") == 1
        assert len(said("status", "--json").splitlines()) == 2
        named = run("status", "-p", "9092")
        assert (named.exit_code, "there are some on 9090, 9091" in named.output) == (1, True)


def test_a_proxy_of_another_version_hides_none_of_the_others():
    with serving(replace(report(), version=0), port=9090), serving(report(), port=9091):
        both = run("status")
    assert (both.exit_code, both.stdout.count("hivemind 1.2.3")) == (1, 1)
    assert "the proxy speaks version 0" in both.stderr


def test_a_wall_is_a_state():
    with serving(report(pool(account_block=AccountBlockView("five hours", 7200)))):
        assert rows("status", "pools")[0]["state"] == "the account's limit is spent, for 2 h 0 min: five hours"
