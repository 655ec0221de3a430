"""What is said and printed; real commands under a lease are in tests/e2e/test_tasks.py."""

import json
import os
import sys

import click
import pytest
from click.testing import CliRunner

from hivemind_addon.plugins.fleets.commands.lease import (
    open_store,
    refused,
    token_of,
    variables,
    wait_in_line,
    watched_holder,
    who,
)
from hivemind_addon.plugins.fleets.leases.choice import LeasePlace
from hivemind_addon.plugins.fleets.leases.model import Grant, Holder, Lease, NotGranted, Request
from hivemind_addon.tools.cli import main
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


# In a cluster -----------------------------------------------------------------------------------------------------------


def test_with_a_cluster_the_leases_are_in_its_engine_and_not_in_the_file(engine):
    shared = ["--cluster", engine.unix_url]
    assert run(*shared, "acquire", "a", "--pid", PID, "--agent", "me", "--no-wait").exit_code == 0
    assert run("list").stdout == "nothing is held or waited for\n"
    assert "me" in run("list", env={"HIVEMIND_CLUSTER": engine.unix_url}).stdout
    assert "nothing" in run("--cluster", "off", "list", env={"HIVEMIND_CLUSTER": engine.unix_url}).stdout
    assert "nothing" in run(*shared, "--cluster-name", "other", "list").stdout
    refused = run(*shared, "acquire", "a", "--no-wait")
    assert (refused.exit_code, refused.stderr) == (75, f"a: held by me (process {PID})\n")
    assert run(*shared, "release", "a", "--force").stdout == "released a\n"


def test_what_runs_under_a_shared_lease_finds_it_again_but_gets_no_password(engine):
    printed = run("--cluster", engine.unix_url, "--cluster-name", "team", "acquire", "a", "--pid", PID, "--export")
    told = dict(line.removeprefix("export ").split("=", 1) for line in printed.stdout.splitlines())
    assert (told["HIVEMIND_CLUSTER"], told["HIVEMIND_CLUSTER_NAME"]) == (engine.unix_url, "team")
    assert run("renew", env=told).exit_code == 0
    assert run("release", env=told).stdout == "released a\n"
    # By the environment it is inherited as it is.
    assert "CLUSTER" not in run("acquire", "a", "--export", env={"HIVEMIND_CLUSTER": engine.unix_url}).stdout
    assert engine.send("ACL SETUSER me on >hush ~* &* +@all").startswith(b"+OK")
    secret = ["--cluster", engine.unix_url.replace("unix://", "unix://me:hush@")]
    printed = run(*secret, "acquire", "b", "--pid", PID, "--export")
    assert printed.exit_code == 0
    assert "hush" not in printed.output
    assert "HIVEMIND_CLUSTER=" not in printed.stdout
    assert "set HIVEMIND_CLUSTER_PASSWORD instead" in printed.stderr
    named = engine.unix_url.replace("unix://", "unix://me@")
    printed = run("--cluster", named, "acquire", "c", "--export", env={"HIVEMIND_CLUSTER_PASSWORD": "hush"})
    assert f"HIVEMIND_CLUSTER={named}\n" in printed.stdout


def test_a_name_that_another_machine_holds_is_not_released_by_a_process_of_the_same_number(engine):
    mine = watched_holder("me", os.getppid())
    theirs = Request(("a",), Holder("far", mine.pid, "1/another-boot/pid", "laptop"), 60.0)
    with LeasePlace(engine.unix_url).open({}) as store:
        assert isinstance(store.acquire(theirs, 0), Lease)
    environment = {"HIVEMIND_CLUSTER": engine.unix_url}
    result = run("release", "a", env=environment)
    assert (result.exit_code, "--force" in result.stderr) == (1, True)
    result = run("acquire", "a", "--no-wait", "--json", env=environment)
    assert json.loads(result.stdout)["holders"] == [{"agent": "far", "pid": mine.pid, "host": "laptop"}]
    assert "far (process" in run("list", env=environment).stdout


def test_who_holds_it_elsewhere_is_named_with_the_machine():
    assert who(Holder("planner", 7, "", "laptop")) == "planner (process 7 on laptop)"
    assert who(Holder("make-8", 8, "", "laptop")) == "make-8 (on laptop)"


def test_what_is_wrong_with_the_cluster_is_one_line(monkeypatch):
    slips = [
        (["--cluster", "cache:6379", "list"], 1, "--cluster: 'cache:6379' is no engine's URL"),
        (["--cluster", "valkey://127.0.0.1:1", "list"], 1, "is not there (connection refused); start it"),
        (["--cluster", "valkey://127.0.0.1:1", "acquire", "a"], 1, "is not there"),
        (["--cluster", "valkey://127.0.0.1:1", "run", "a", "--", "true"], 1, "is not there"),
        (["--cluster", "valkey://127.0.0.1:1", "--cluster-name", "a b", "list"], 1, "--cluster-name: 'a b' is no name"),
        (["--cluster", "valkeys://127.0.0.1:1?ssl_ca_certs=/no", "list"], 1, "no file '/no'"),
    ]
    assert offenders(run, slips) == []
    assert run("list", env={"HIVEMIND_CLUSTER": "x"}).stderr.startswith("Error: HIVEMIND_CLUSTER: 'x' is no engine's")
    for name in ("redis", "hivemind_addon.plugins.fleets.leases.engine_store"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install 'hivemind-addon[cluster]'" in run("--cluster", "valkey://127.0.0.1:1", "list").stderr
