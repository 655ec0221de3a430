"""What a replay tells: policies by seeds, the tables, the command."""

import io
import json
from dataclasses import replace

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from hivemind_addon.kernel.values.ticket import Dimension, OutcomeKind
from hivemind_addon.plugins.captures.model import Capture, LimitSeen, encode
from hivemind_addon.sim.policy import COMPARED, Policy
from hivemind_addon.sim.replay.limits import given_limit
from hivemind_addon.sim.replay.tables import what_if_view
from hivemind_addon.sim.replay.whatif import what_if
from hivemind_addon.tools.cli import main
from tests.cases import each
from tests.cpu_time import least_cpu_s
from tests.sim.replay.nights import POOL, attempt, call, capture, fleet


def runs(replay, policy):
    return next(nights.runs for nights in replay.policies if nights.policy == policy)


def test_a_night_of_fifty_agents_with_twenty_turns_is_replayed_within_seconds():
    night = fleet(50, 20, requests_per_min=200)
    replays = []
    assert least_cpu_s(lambda: replays.append(what_if(night, policies=[Policy.HIVEMIND])), tries=1) < 10
    (run,) = runs(replays[0], "hivemind")
    assert (run.agents, run.lost, run.turns_done) == (50, 0, 1000)


def test_the_same_capture_and_arguments_give_the_same_bytes():
    first, second = (
        msgspec.json.encode(what_if(fleet(8, 5), seeds=2, copies=3, given=[given_limit("requests=30/min")]))
        for _ in range(2)
    )
    assert first == second


def test_a_strict_limit_kills_agents_on_their_own_and_none_behind_the_scheduler():
    replay = what_if(fleet(12, 6), given=[given_limit("requests=20/min")])
    (direct,), (scheduled,) = runs(replay, "direct"), runs(replay, "hivemind")
    assert direct.lost > 6
    assert direct.refusals > 0
    assert scheduled.lost == 0
    assert scheduled.turns_done == 72
    assert scheduled.makespan_s >= scheduled.bound_s > replay.recorded.makespan_s
    assert [nights.policy for nights in replay.policies] == [policy.name for policy in COMPARED]


def test_more_agents_want_more_of_everything():
    once, thrice = (what_if(fleet(4, 4), policies=[Policy.HIVEMIND], copies=copies) for copies in (1, 3))
    assert (thrice.agents, thrice.turns) == (12, 48)
    assert runs(thrice, "hivemind")[0].spent.tokens > 2 * runs(once, "hivemind")[0].spent.tokens
    assert once.recorded == thrice.recorded


def test_what_was_recorded_is_counted_as_it_was():
    refused = attempt(0, took_s=0.5, kind=OutcomeKind.THROTTLED, status=429)
    overloaded = attempt(1, took_s=0.5, kind=OutcomeKind.OVERLOADED, status=529)
    calls = (
        call("1", 0, attempts=(refused, overloaded, attempt(2))),
        call("b", 1, agent="b", attempts=(attempt(1, kind=OutcomeKind.FAILED, status=500),)),
    )
    recorded = what_if(capture(*calls), policies=[Policy.HIVEMIND]).recorded
    assert (recorded.agents, recorded.lost, recorded.turns, recorded.turns_done) == (2, 1, 2, 1)
    assert (recorded.attempts, recorded.refusals, recorded.overloads, recorded.failures) == (4, 1, 1, 1)
    assert recorded.makespan_s == 4
    assert recorded.delays.p50_s == 2.0
    assert recorded.spent.tokens == 1100
    assert recorded.spent.micro_usd == 4500


def test_what_a_reader_has_to_know_is_said():
    dead = call("2", 9, attempts=(attempt(9, kind=OutcomeKind.OVERLOADED, status=529),))
    left = call("3", 20, attempts=(), end="cancelled")
    night = replace(capture(call("1", 0), dead, left, limits=()), damage=("the file ends at byte 99",))
    assert list(what_if(night, policies=[Policy.HIVEMIND]).notes) == [
        "damaged: the file ends at byte 99; what precedes it is replayed",
        "1 turn never got an answer: taken to need what others of their pool did",
        "1 call left out: the client went before anything was sent",
        "no limit is known of api.anthropic.com/key-1/claude-sonnet: nothing is refused there; give one with --limit",
    ]
    (pool,) = what_if(fleet(1, 1), given=[given_limit("concurrency=3")], policies=[Policy.FIFO]).pools
    assert pool.limits == ("requests=60/min:bucket", "concurrency=3")
    pace = LimitSeen(0, POOL, "pace", "3 requests per second", 3, 1.0, Dimension.REQUESTS)
    (pool,) = what_if(capture(call("1", 0), limits=(pace,)), policies=[Policy.FIFO]).pools
    assert pool.limits == ("requests=3/s:bucket (no header tells)",)


@each("policy", COMPARED)
def test_each_seed_is_a_run(policy):
    replay = what_if(fleet(3, 3), policies=[policy], seeds=3, copies=2)
    assert len(runs(replay, policy.name)) == 3
    assert len({run.makespan_s for run in runs(replay, policy.name)}) > 1


# View -----------------------------------------------------------------------------------------------------------------


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


@each("width", [60, 80, 120])
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


# Command --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def night(tmp_path):
    file = tmp_path / "night.hivemind"
    file.write_bytes(encode(fleet(6, 4)))
    return str(file)


def replay(*arguments):
    return CliRunner().invoke(main, ["replay", *arguments])


def test_a_capture_is_replayed_under_every_policy(night):
    result = replay(night)
    assert result.exit_code == 0
    assert "night.hivemind: 6 agents, 24 turns" in result.output
    assert all(
        policy in result.output for policy in ("recorded", "direct", "sdk-retry", "aimd-pause", "fifo", "hivemind")
    )


def test_json_is_the_same_bytes_each_time(night):
    arguments = (night, "--json", "--agents", "x3", "--limit", "requests=30/min", "--seeds", "2")
    first, second = replay(*arguments), replay(*arguments)
    assert first.stdout == second.stdout
    told = json.loads(first.stdout)
    assert (told["agents"], told["copies"], len(told["policies"])) == (18, 3, 5)
    assert told["pools"][0]["limits"] == ["requests=30/min:bucket"]


def test_only_the_asked_policies_run(night):
    told = json.loads(replay(night, "--json", "--policy", "only-meters", "--policy", "direct").stdout)
    assert [nights["policy"] for nights in told["policies"]] == ["only-meters", "direct"]


def test_an_agent_that_the_scheduler_would_lose_is_the_exit_status(night):
    assert replay(night, "--limit", "input_tokens=10/min", "--policy", "hivemind").exit_code == 1


@each(
    ("arguments", "line"),
    [
        (("--pace", "x5"), "--pace goes only with --real"),
        (("--real", "--limit", "requests=5/min"), "--limit does not go with --real"),
        (("--real", "--pace", "fast"), "'fast' is no pace; write x0.1 to x1000"),
        (("--real", "--pace", "nan"), "'nan' is no pace"),
        (("--limit", "requests=60"), "does not say per what; write requests=60/min"),
        (("--policy", "magic"), "no policy 'magic'; there are direct, sdk-retry"),
        (("--agents", "many"), "'many' is no factor; write x1 to x1000"),
        (("--agents", "x0"), "'x0' is no factor"),
        (("--agents", "x²"), "'x²' is no factor"),
    ],
)
def test_what_cannot_be_understood_gets_one_line(night, arguments, line):
    result = replay(night, *arguments)
    assert result.exit_code == 2
    assert line in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_a_capture_is_replayed_through_a_real_proxy(tmp_path):
    file = tmp_path / "night.hivemind"
    file.write_bytes(encode(capture(call("1", 0), call("2", 3))))
    result = replay(str(file), "--real", "--pace", "x10", "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert [(one["recorded"]["id"], one["replayed"]["end"]) for one in told["calls"]] == [
        ("1", "delivered"),
        ("2", "delivered"),
    ]
    assert told["guard_trips"] == 0


def test_a_file_that_is_no_capture_or_empty_gets_one_line(tmp_path):
    missing = replay(str(tmp_path / "none.hivemind"))
    assert missing.exit_code == 1
    assert "none.hivemind" in missing.output
    (tmp_path / "empty.hivemind").write_bytes(encode(Capture()))
    empty = replay(str(tmp_path / "empty.hivemind"))
    assert empty.exit_code == 1
    assert "holds no call that has ended; record some" in empty.output
    (tmp_path / "other.hivemind").write_text("hello")
    other = replay(str(tmp_path / "other.hivemind"))
    assert other.exit_code == 1
    assert "Traceback" not in missing.output + empty.output + other.output
