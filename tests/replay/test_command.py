import json

import pytest
from click.testing import CliRunner

from hivemind_addon.proxy.capture.model import Capture, encode
from hivemind_addon.tools.cli import main
from tests.cases import over
from tests.replay.nights import call, capture, fleet


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


@over(
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
