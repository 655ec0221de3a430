import os

import click
import pytest

from hivemind_addon.tools.commands.lease_options import (
    open_store,
    refused,
    token_of,
    variables,
    wait_in_line,
    watched_holder,
    who,
)
from hivemind_addon.tools.locks.model import Grant, Holder, Lease, NotGranted, Request

PID = os.getpid()


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
    assert watched_holder(None, PID, "/usr/bin/make").agent == f"make-{PID}"
    assert watched_holder("me", PID).agent == "me"
    with pytest.raises(click.BadParameter, match="no process 2147483647"):
        watched_holder("me", 2147483647)


def test_who_waits_in_line_says_so_once_and_not_for_ever(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with open_store() as store:
        first = wait_in_line(store, Request(("a",), watched_holder("first", PID), 60.0, 1, ""), 0.0)
        assert isinstance(first, Lease)
        second = wait_in_line(store, Request(("a",), watched_holder("second", PID), 60.0, 1, ""), 0.01)
    assert isinstance(second, NotGranted)
    assert capsys.readouterr().err == f"waiting: a: held by first (process {PID})\n"
