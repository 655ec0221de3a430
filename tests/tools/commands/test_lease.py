"""What is said and printed; real commands under a lease are in tests/e2e/test_tasks.py."""

import json
import os

import click
import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands.lease import (
    open_store,
    refused,
    token_of,
    variables,
    wait_in_line,
    watched_holder,
    who,
)
from hivemind_addon.tools.locks.model import Grant, Holder, Lease, NotGranted, Request
from tests.tools.commands.slips import offenders

PID = str(os.getpid())


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("HIVEMIND_AGENT", "HIVEMIND_LEASE_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments, **more):
    return CliRunner().invoke(main, ["lease", *arguments], **more)


def acquire(*arguments):
    result = run("acquire", *arguments, "--no-wait", "--pid", PID, "--json")
    return result.exit_code, json.loads(result.stdout)


def test_a_lease_is_had_renewed_and_released():
    status, lease = acquire("b", "a", "--ttl", "2m", "--value", "here", "--agent", "me")
    assert status == 0
    assert lease.pop("id")
    assert lease == {
        "granted": True,
        "token": 1,
        "names": ["a", "b"],
        "holder": {"agent": "me", "pid": int(PID)},
        "left_s": 120,
        "value": "here",
    }


def test_its_id_is_what_renews_and_releases_it():
    _, lease = acquire("a")
    assert json.loads(run("renew", lease["id"], "--ttl", "5m", "--json").stdout)["left_s"] == 300
    assert run("renew", env={"HIVEMIND_LEASE_ID": lease["id"]}).stdout.startswith(lease["id"])
    assert run("release", lease["id"]).stdout == "released a\n"
    gone = run("renew", lease["id"])
    assert (gone.exit_code, gone.stderr.count("\n")) == (1, 1)
    assert "is over" in gone.stderr
    gone = run("release", lease["id"])
    assert gone.exit_code == 1
    assert "not held" in gone.stderr


def test_in_words():
    result = run("acquire", "a", "--pid", PID)
    assert result.exit_code == 0
    assert result.stdout.split(maxsplit=1)[1] == "token 1  1m  a\n"


def test_who_does_not_get_it_hears_who_has_it():
    acquire("a", "--agent", "first")
    status, answer = acquire("a", "b")
    assert status == 75
    assert answer == {"granted": False, "ahead": ["a"], "holders": [{"agent": "first", "pid": int(PID)}]}
    result = run("acquire", "a", "--no-wait")
    assert (result.exit_code, result.stdout) == (75, "")
    assert result.stderr == f"a: held by first (process {PID})\n"


def test_a_shell_evaluates_a_failure_where_there_is_no_lease():
    acquire("a")
    assert run("acquire", "a", "--no-wait", "--export").stdout == "false\n"
    assert run("acquire", " ", "--export").stdout == "false\n"
    assert run("acquire", "b", "--export", "--pid", PID).stdout.splitlines()[1] == "export HIVEMIND_LEASE_TOKEN=2"


def test_what_is_wrong_is_one_line_and_no_traceback():
    slips = [
        (["acquire"], 2, "NAME"),
        (["acquire", ""], 1, "is no name"),
        (["acquire", "a", "--ttl", "soon"], 2, "no span of time"),
        (["acquire", "a", "--ttl", "0"], 1, "more than 0"),
        (["acquire", "a", "--ttl", "900d"], 1, "at most"),
        (["acquire", "a", "--pid", "2147483647"], 2, "no process 2147483647"),
        (["acquire", "a", "--pid", "99999999999999999999"], 2, "no process"),
        (["acquire", "a", "--at-most", "0"], 2, "at-most"),
        (["acquire", "a", "--export", "--json"], 2, "not both"),
        (["release"], 2, "say which"),
        (["release", "nobody"], 1, "not held"),
        (["list", "\n"], 1, "is no name"),
        (["run", "a"], 2, "say what to run: NAME -- COMMAND"),
        (["run", "a", "--"], 2, "say what to run"),
        (["run", "--", "true"], 2, "NAME"),
        (["run", "a", "--", "no-such-command"], 127, "no-such-command"),
        (["lead", "a", "b", "--", "true"], 2, "b"),
        (["lead", "a"], 2, "say what to run"),
    ]
    assert offenders(run, slips) == []


def test_a_name_is_released_by_who_holds_it_or_by_force():
    run("acquire", "a", "b", "--pid", "0", "--agent", "other")
    refused = run("release", "a")
    assert refused.exit_code == 1
    assert "'a' is held by other; --force" in refused.stderr
    assert run("release", "a", "--force").stdout == "released a, b\n"
    run("acquire", "c")
    assert run("release", "c").stdout == "released c\n"


def test_the_list_shows_holders_and_no_ids():
    assert run("list").stdout == "nothing is held or waited for\n"
    _, lease = acquire("plan", "--value", "http://127.0.0.1:7000", "--agent", "one", "--ttl", "1h")
    (standing,) = json.loads(run("list", "--json").stdout)
    holder = standing["holders"][0]
    assert 3500 < holder.pop("left_s") <= 3600
    assert standing == {
        "name": "plan",
        "capacity": 1,
        "holders": [
            {
                "token": 1,
                "names": ["plan"],
                "holder": {"agent": "one", "pid": int(PID)},
                "value": "http://127.0.0.1:7000",
            }
        ],
        "waiting": [],
        "last_token": 1,
    }
    for form in ("--json", "--csv", ""):
        assert lease["id"] not in run("list", *([form] if form else [])).stdout
    assert run("list", "--csv").stdout.splitlines()[0] == "name,capacity,holders,waiting,last_token"
    assert "0 of 1" in run("list", "nobody").stdout
    assert json.loads(run("list", "nobody", "--json").stdout)[0]["holders"] == []


def test_a_damaged_file_is_one_line(state):
    folder = state / "hivemind_addon"
    folder.mkdir()
    (folder / "leases.db").write_text("no database at all" * 1000)
    result = run("list")
    assert result.exit_code == 1
    assert "remove it" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["run", "lead"])
def test_a_busy_name_does_not_start_a_command(command):
    assert run("acquire", "a", "--pid", str(os.getpid())).exit_code == 0
    result = run(command, "a", "--no-wait", "--", "true")
    assert (result.exit_code, result.stdout) == (75, "")
    assert "held by" in result.stderr


def test_how_it_is_called_says_where_the_command_goes():
    assert "[OPTIONS] NAME... -- COMMAND..." in run("run", "--help").output


def refusal(*holders):
    return NotGranted(ahead=("a", "b"), holders=holders, retry_in_s=1.0)


def test_who_has_it_is_told_with_the_process_where_the_name_does_not_say_it():
    holders = (
        Holder(agent="planner", pid=7, started=""),
        Holder(agent="make-8", pid=8, started=""),
        Holder(agent="by-hand", pid=0, started=""),
    )
    assert refused(refusal(*holders)) == "a, b: held by planner (process 7), make-8, by-hand"
    assert [who(one) for one in holders] == ["planner (process 7)", "make-8", "by-hand"]


def test_a_crowd_is_summed_up():
    said = refused(refusal(*(Holder(agent=f"h-{number}", pid=number, started="") for number in range(1, 8))))
    assert said == "a, b: held by h-1, h-2, h-3, h-4, 3 others"


def test_who_waits_behind_others_hears_that():
    assert refused(refusal()) == "a, b: others have waited for longer"


def test_a_command_knows_its_lease_by_variables():
    held = Lease("0f3c", (Grant("a", 5), Grant("b", 5)), Holder(agent="me", pid=7, started=""), 60.0)
    assert token_of(held) == 5
    assert variables(held) == {"HIVEMIND_LEASE_ID": "0f3c", "HIVEMIND_LEASE_TOKEN": "5"}


def test_a_holder_has_a_name_and_lives():
    assert watched_holder(None, int(PID), "/usr/bin/make").agent == f"make-{PID}"
    assert watched_holder("me", int(PID)).agent == "me"
    with pytest.raises(click.BadParameter, match="no process 2147483647"):
        watched_holder("me", 2147483647)


def test_who_waits_in_line_says_so_once_and_not_for_ever(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with open_store() as store:
        first = wait_in_line(store, Request(("a",), watched_holder("first", int(PID)), 60.0, 1, ""), 0.0)
        assert isinstance(first, Lease)
        second = wait_in_line(store, Request(("a",), watched_holder("second", int(PID)), 60.0, 1, ""), 0.01)
    assert isinstance(second, NotGranted)
    assert capsys.readouterr().err == f"waiting: a: held by first (process {PID})\n"
