import dataclasses
import re
import sys
from datetime import UTC
from html import unescape
from xml.etree import ElementTree as ET

import msgspec
import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.values.command import SetLimit
from hivemind_addon.kernel.values.snapshot import AccountBlockView, BudgetView, Counters, PriorityView
from hivemind_addon.kernel.values.spend import Budget, Scope, Spend
from hivemind_addon.kernel.values.ticket import PoolKey, Priority
from hivemind_addon.proxy.api.control import decode_report
from hivemind_addon.proxy.api.report import ClusterMember, ClusterView, LogLine
from hivemind_addon.proxy.system.terminal import is_screen
from hivemind_addon.tools.dash.picture import PictureLook, picture, print_picture
from tests.cpu_time import least_cpu_s
from tests.tools.dash.record import IMAGE, INCIDENT, RECORDED, image, record, recorded
from tests.tools.dash.samples import KEY, context, pool, report, session, waiting

PLAIN = PictureLook(width=120, zone=UTC)


def text(made, look=PLAIN):
    return "\n".join(line.plain for line in picture(made, look))


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_fleet_is_drawn_for_every_screen(name, golden):
    golden(f"{name}.txt", text(recorded(name), replace(PLAIN, width=160)))
    for width in (1, 7, 20, 39, 60, 80, 120, 200):
        assert all(line.cell_len <= width for line in picture(recorded(name), PictureLook(width=width, zone=UTC))), (
            width
        )


def test_what_is_tried_again_and_goes_well_is_no_news():
    assert "attempt 1 failed" not in text(recorded("night"), replace(PLAIN, width=200))
    assert "attempt 3 failed (529 overloaded_error); again in" in text(recorded("incident"), replace(PLAIN, width=200))


SPENT = BudgetView(Budget(Scope.EVERYONE, "", tokens=10), Spend(11, 0), Spend(), renews_in_s=600)
UNPRICED = BudgetView(
    Budget(Scope.EVERYONE, "", micro_usd=10), Spend(3_600_000, unpriced_tokens=3_500_000), Spend(), renews_in_s=600
)
OLD = context("c", seen_ago_s=4_000.0)
PRIORITIES = (PriorityView("lead*", Priority.HIGH), PriorityView("night", Priority.LOW, ends_in_s=120.0, by="night"))


def test_alarms_come_before_anything_else(golden):
    walled = pool(paused=True, queued=3, account_block=AccountBlockView("usage_limit_reached", 600))
    all_at_once = report(
        walled,
        pool(PoolKey("b.test", "k", "m"), breaker="half-open"),
        stopping=True,
        counters=Counters(guard_trips=2),
        budgets=(SPENT,),
        priorities=PRIORITIES,
    )
    drawn = {
        "idle": (report(), ""),
        "all at once": (all_at_once, "proxy gone (3 s)"),
        "paused": (report(pool(paused=True, queued=3)), ""),
        "probing": (report(pool(breaker="half-open")), ""),
        "the account is tried": (report(pool(account_block=AccountBlockView("x", 0))), ""),
        "spent": (report(budgets=(SPENT,)), ""),
        "without a price": (report(budgets=(UNPRICED,)), ""),
        "priorities": (report(priorities=PRIORITIES), ""),
        "contexts are nearly full": (report(contexts=(context(), context("b", tokens=190_000), OLD)), ""),
    }
    parts = [f"# {name}\n\n{text(made, replace(PLAIN, gone=gone))}" for name, (made, gone) in drawn.items()]
    golden("alarms.txt", "\n\n".join(parts))


def test_connections_that_wait_for_open_files_are_an_alarm():
    crowded = replace(report(), proxy=replace(report().proxy, open_files=256, waiting_clients=31))
    assert "! 31 connections wait: 256 open files let no more be served (raise ulimit -n)" in text(crowded, PLAIN)


def test_a_cluster_has_a_line_of_its_own():
    view = ClusterView("team", "ci-1", "coordinator", "ci-1", 5, known_members=2)
    made = replace(report(), cluster=replace(view, members=(ClusterMember("ci-1", 3, 2), ClusterMember("vm-2", 0, 1))))
    told = (
        "cluster team: 2 members, this proxy coordinates (epoch 5); ci-1 3 waiting, 2 in flight; vm-2 0 waiting, 1 in"
    )
    assert text(made).splitlines()[2].startswith(told)
    for changes, words in (
        ({"role": "alone", "share": 0.25, "since_s": 12.0}, "alone for 12 s, with 1/4 of the limits"),
        ({"role": "member", "coordinator": "vm-2"}, "2 members, vm-2 coordinates (epoch 5)"),
        ({"summed_s": 40.0}, "2 members, this proxy coordinates (epoch 5); sums of 40 s"),
        ({"role": "joining", "since_s": 1.0}, "joining for 1 s"),
    ):
        lines = text(replace(report(), cluster=replace(view, **changes))).splitlines()
        assert lines[2] == f"cluster team: {words}"
    assert "cluster" not in text(report())


def test_a_refusal_is_no_loss():
    made = report()
    refused = replace(made, snapshot=replace(made.snapshot, counters=Counters(tickets=5, delivered=2, refused=3)))
    assert "none lost · 3 refused" in text(refused)


def test_budgets_and_the_log_have_lines_of_their_own(golden):
    budget = Budget(scope=Scope.GROUP, name="reviewers", tokens=5000, micro_usd=2_000_000)
    view = BudgetView(budget, spent=Spend(1200, 300_000), reserved=Spend(50, 0), renews_in_s=None, added=Spend(1000, 0))
    log = (
        LogLine(60, "INFO", "t-1 attempt 1 failed (529); again in 2.0 s", "t-1", KEY, agent="lead"),
        LogLine(1, "WARNING", f"{KEY}: breaker open (529)", None, KEY),
    )
    made = report(pool(), budgets=(view,), log=log)
    golden("budgets-and-log.txt", text(made, replace(PLAIN, width=200)))
    assert "what happened" not in text(made, replace(PLAIN, log=False))


def test_every_instant_of_a_night_can_be_told_and_drawn():
    seen = []

    def draw(made):
        told = decode_report(msgspec.json.encode(made), "told")
        assert told == made
        seen.append(all(line.cell_len <= 80 for line in picture(told, PictureLook(width=80))))

    record(dataclasses.replace(INCIDENT, duration_s=700), SetLimit(3), watch=draw)
    assert len(seen) > 50
    assert all(seen)


def test_a_filter_and_an_order_are_named():
    shown = text(report(sessions=[session("alpha"), session("beta")]), replace(PLAIN, pattern="alp"))
    assert "1 agent with “alp”" in shown
    assert "beta" not in shown
    assert "by who goes next" in shown


def test_names_of_requests_are_neither_markup_nor_control_characters():
    wild = "[red]a[/red]\x1b[2J\n"
    shown = text(
        report(pool(tickets=(waiting(agent=wild, name=wild),)), sessions=[session(wild, wild)]),
        replace(PLAIN, width=200),
    )
    assert "[red]" in shown
    assert "\x1b" not in shown


def test_ten_thousand_requests_and_five_hundred_sessions_are_drawn_at_once():
    tickets = tuple(waiting(f"t{n}", agent=f"a{n % 50}", name=f"s{n % 500}", position=n) for n in range(10_000))
    made = report(pool(tickets=tickets, queued=10_000), sessions=[session(f"a{n % 50}", f"s{n}") for n in range(500)])
    look = PictureLook(width=200, opened=frozenset(["agent a7"]))
    assert least_cpu_s(lambda: picture(made, look)) < 0.4, "it takes 40 ms on a fast machine"


async def test_the_picture_of_the_readme_is_fresh():
    """`python -m tests.tools.dash.record` makes it anew. Only its words are compared: the library may draw otherwise."""
    assert words(IMAGE.read_text()) == words(await image())


def words(svg):
    return unescape(re.sub(r"<[^>]*>|\s|&#160;", "", svg.partition("<g")[2]))


async def test_it_is_well_formed_and_fetches_nothing():
    svg = await image()
    ET.fromstring(svg)
    assert "nightly" in svg
    assert "@font-face" not in svg
    assert "https://" not in svg.replace("http://www.w3.org", "").replace("https://www.textualize.io", "")


def test_it_is_as_wide_as_columns_say(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    print_picture(recorded("night"))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) == 200
    assert "\x1b" not in out, "a pipe gets no colours"
    assert "what happened" in out


def test_requests_are_listed_by_their_ids_where_somebody_may_want_to_name_one(capsys):
    print_picture(report(pool(tickets=(waiting("t-17"),))), requests=True)
    out = capsys.readouterr().out
    assert "t-17 " in out
    assert "what happened" not in out


def test_only_a_terminal_that_can_is_drawn_on(monkeypatch):
    for term, tty, drawn_on in (
        ("xterm-256color", True, True),
        ("xterm", False, False),
        ("dumb", True, False),
        ("", True, False),
    ):
        monkeypatch.setenv("TERM", term)
        for stream in (sys.stdin, sys.stdout):
            monkeypatch.setattr(stream, "isatty", lambda tty=tty: tty)
        assert is_screen() is drawn_on
