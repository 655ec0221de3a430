from dataclasses import replace
from datetime import UTC

import msgspec
import pytest

from hivemind_addon.api.command import SetLimit
from hivemind_addon.api.control import decode_report
from hivemind_addon.api.report import LogLine
from hivemind_addon.api.snapshot import BudgetView, Counters, MeterView, PriorityView, WallView
from hivemind_addon.api.spend import Budget, Scope, Spend
from hivemind_addon.api.ticket import PoolKey, Priority
from hivemind_addon.tools.dash.picture import PictureLook, picture
from tests.cpu_time import least_cpu_s
from tests.dash.record import INCIDENT, RECORDED, record, recorded
from tests.dash.samples import KEY, flying, pool, report, session, waiting

PLAIN = PictureLook(width=120, zone=UTC)


def text(made, look=PLAIN):
    return picture(made, look).text.plain


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("height", [24, 30, 50])
def test_a_recorded_fleet_fits_the_screen(name, width, height):
    drawn = picture(recorded(name), PictureLook(width=width, height=height, selected="agent nightly", zone=UTC))
    assert len(drawn.lines) <= height
    assert all(line.cell_len <= width for line in drawn.lines)
    shown = drawn.text.plain
    limit = recorded("night").snapshot.pools[0].limit
    own = {"night": f"of {limit} in flight", "incident": "provider down", "steered": "paused by a person"}[name]
    for words in ("hivemind 0.1.0", own, "nightly", "what happened"):
        assert words in shown


@pytest.mark.parametrize("width", [1, 7, 20, 39])
@pytest.mark.parametrize("height", [1, 3, 8, 15])
def test_a_tiny_screen_gets_a_part_of_it(width, height):
    drawn = picture(recorded("incident"), PictureLook(width=width, height=height, selected="agent nightly"))
    assert len(drawn.lines) <= height
    assert all(line.cell_len <= width for line in drawn.lines)


def test_a_recorded_night_shows_what_a_person_wants_to_know():
    made = recorded("night")
    shown = text(made, replace(PLAIN, width=200))
    for words in (
        "api.anthropic.com/acme/claude-sonnet",
        "input-tokens",
        "retries absorbed",
        "budget of group night",
        "├ worker-0",
        "└ nightly-1",
        "claude-haiku-4-5",
        "high",
        "limit learned: tokens",
        "agent reviewer-1 has spent most of its budget",
        "none lost" if not made.snapshot.counters.gave_up else " lost",
    ):
        assert words in shown
    assert "attempt 1 failed" not in shown, "what is tried again and goes well is no news"
    assert "attempt 3 failed (529 overloaded_error); again in" in text(recorded("incident"), replace(PLAIN, width=200))


def test_an_idle_proxy_says_so():
    shown = text(report())
    assert "hivemind 1.2.3  127.0.0.1:8080  up 1 h 0 min  http://127.0.0.1:8081/  process 7" in shown
    assert shown.splitlines()[0].endswith("09:00:00")
    assert "no model call yet" in shown
    assert "0 agents" in shown


def test_alarms_come_before_anything_else():
    spent = BudgetView(Budget(Scope.EVERYONE, "", tokens=10), Spend(11, 0), Spend(), renews_in_s=600)
    made = report(
        pool(paused=True, queued=3, wall=WallView("usage_limit_reached", 600)),
        pool(PoolKey("b.test", "k", "m"), breaker="half-open"),
        stopping=True,
        counters=Counters(guard_trips=2),
        budgets=(spent,),
        priorities=(PriorityView("lead*", Priority.HIGH),),
    )
    shown = text(made, replace(PLAIN, gone="proxy gone (3 s)"))
    alarms = [line.strip(" !") for line in shown.splitlines()[2:7]]
    assert alarms == [
        "proxy gone (3 s)",
        "stopping: nothing new is admitted, what runs may finish",
        "2 guard trips: requests went past the scheduler, which failed; see the log",
        "api.test/key-1/large: spent (usage_limit_reached), for 10 min",
        "and 4 more",
    ]
    (paused,) = (line for line in text(report(pool(paused=True, queued=3))).splitlines() if "paused" in line)
    assert paused.strip(" !") == "paused by a person: all pools; 3 wait"
    assert "provider down, one request is trying" in text(report(pool(breaker="half-open")))
    assert "api.test/key-1/large: spent (x), being tried again" in text(report(pool(wall=WallView("x", 0))))
    assert "budget of everyone is spent, renews in 10 min" in text(report(budgets=(spent,)))
    assert "priorities: lead* high (by a person)" in text(report(priorities=made.snapshot.priorities))
    yielded = PriorityView("night", Priority.LOW, ends_in_s=120.0, by="night")
    assert "priorities: night low for 2 min (by night itself)" in text(report(priorities=(yielded,)))


def test_a_refusal_is_no_loss():
    made = report()
    refused = replace(made, snapshot=replace(made.snapshot, counters=Counters(tickets=5, delivered=2, refused=3)))
    assert "none lost · 3 refused" in text(refused)


def test_what_is_old_is_faint():
    fresh, old = (picture(report(pool()), replace(PLAIN, gone=gone)) for gone in ("", "gone"))
    assert not any("dim" in str(span.style) for span in fresh.lines[4].spans if span.end - span.start > 60)
    assert all(any(span.style == "dim" for span in line.spans) for line in old.lines[4:] if line.plain)


def test_budgets_of_groups_have_lines_of_their_own():
    budget = Budget(scope=Scope.GROUP, name="reviewers", tokens=5000, micro_usd=2_000_000)
    view = BudgetView(budget, spent=Spend(1200, 300_000), reserved=Spend(50, 0), renews_in_s=None, added=Spend(1000, 0))
    shown = text(report(budgets=(view,)), replace(PLAIN, width=200))
    for words in (
        "group reviewers",
        "24%",
        "1,200 tokens, $0.3000 of 5,000 tokens, $2.00 per run",
        "50 tokens set aside",
        "1,000 tokens added",
    ):
        assert words in shown
    assert "renews with the next run" in shown


def test_the_log_names_the_agent_and_the_pool():
    log = (
        LogLine(60, "INFO", "t-1 attempt 1 failed (529); again in 2.0 s", "t-1", KEY, agent="lead"),
        LogLine(1, "WARNING", f"{KEY}: breaker open (529)", None, KEY),
    )
    shown = text(report(pool(), log=log))
    assert "08:59:00 lead: t-1 attempt 1 failed (529); again in 2.0 s" in shown
    assert "08:59:59 api.test/key-1/large: breaker open (529)" in shown
    assert "what happened" not in text(report(pool(), log=log), replace(PLAIN, log=False))


def test_the_selected_row_is_always_on_the_screen():
    made = report(pool(), sessions=[session(f"agent-{number}") for number in range(300)])
    for chosen in ("agent agent-0", "agent agent-150", "agent agent-299", f"pool {KEY}"):
        drawn = picture(made, PictureLook(width=80, height=24, selected=chosen))
        (line,) = (line for line in drawn.lines if line.style == "reverse")
        assert line.plain.startswith(chosen.rpartition(" ")[2] if chosen.startswith("agent") else "api.test")
        assert line.cell_len == 80
    assert len(drawn.rows) == 301
    assert "more rows" in drawn.text.plain


def test_many_pools_leave_room_for_the_agents():
    many = [pool(PoolKey(f"host-{number:02}.test", "k", "m"), queued=number) for number in range(40)]
    drawn = picture(
        report(*many, sessions=[session()]), PictureLook(width=80, height=24, selected="pool host-07.test/k/m")
    )
    shown = drawn.text.plain
    assert "more pools" in shown
    assert "host-07.test" in shown
    assert "1 agent ─" in shown


def test_pools_share_the_room_that_there_is():
    meters = tuple(MeterView(f"meter-{number}", "bucket", 10, 5, 1) for number in range(6))
    two = [pool(meters=meters, queued=2), pool(PoolKey("b.test", "k", "m"), meters=meters)]
    shown = text(report(*two, sessions=[session(str(n)) for n in range(9)]), PictureLook(width=80, height=24))
    assert 0 <= shown.partition("b.test")[0].count("meter-") - shown.partition("b.test")[2].count("meter-") <= 1
    assert "meter-1" in shown


def test_every_instant_of_a_night_can_be_told_and_drawn():
    seen = []

    def draw(made):
        told = decode_report(msgspec.json.encode(made), "told")
        assert told == made
        drawn = picture(told, PictureLook(width=80, height=24))
        seen.append(all(line.cell_len <= 80 for line in drawn.lines) and len(drawn.lines) <= 24)

    record(replace(INCIDENT, duration_s=700), SetLimit(3), watch=draw)
    assert len(seen) > 50
    assert all(seen)


def test_a_filter_and_an_order_are_named():
    shown = text(report(sessions=[session("alpha"), session("beta")]), replace(PLAIN, pattern="alp"))
    assert "1 agent with “alp”" in shown
    assert "beta" not in shown
    assert "by active first" in shown


def test_requests_are_listed_where_a_row_is_open():
    made = report(pool(tickets=(waiting("t-1"), flying("t-2"))))
    drawn = picture(made, replace(PLAIN, opened=frozenset(["agent a"])))
    assert drawn.rows == (f"pool {KEY}", "agent a", "ticket t-2", "ticket t-1")
    assert drawn.nodes["ticket t-1"].node.tickets[0].ticket.id == "t-1"
    assert drawn.pools[f"pool {KEY}"].key == KEY


def test_names_of_requests_are_neither_markup_nor_control_characters():
    wild = "[red]a[/red]\x1b[2J\n"
    shown = text(
        report(pool(tickets=(waiting(agent=wild, name=wild),)), sessions=[session(wild, wild)]),
        replace(PLAIN, width=200),
    )
    assert "[red]a[/red]?[2J?" in shown
    assert "\x1b" not in shown


def test_ten_thousand_requests_and_five_hundred_sessions_are_drawn_at_once():
    tickets = tuple(waiting(f"t{n}", agent=f"a{n % 50}", name=f"s{n % 500}", position=n) for n in range(10_000))
    made = report(pool(tickets=tickets, queued=10_000), sessions=[session(f"a{n % 50}", f"s{n}") for n in range(500)])
    look = PictureLook(width=200, height=60, selected="agent a7", opened=frozenset(["agent a7"]))
    assert least_cpu_s(lambda: picture(made, look)) < 0.4, "it takes 40 ms on a fast machine"
