import random
from dataclasses import replace
from io import StringIO

from msgspec import structs
from rich.console import Console

from hivemind_addon.core.pool import PoolSettings
from hivemind_addon.core.scheduler import Scheduler
from hivemind_addon.core.snapshot import SCHEMA_VERSION, BudgetView, WallView, WindowView
from hivemind_addon.core.spend import Budget, Scope, Spend
from hivemind_addon.launch.status_view import MAX_TICKETS, status_view
from hivemind_addon.observe.report import ProxyView, Report
from tests.core import samples

PROXY = ProxyView(pid=7, port=8080, listens=("127.0.0.1:8080", "127.0.0.1:11435"), confdir="", hosts=())


def shown(snapshot):
    console = Console(width=140, file=StringIO())
    console.print(status_view(Report(version=SCHEMA_VERSION, proxy=PROXY, snapshot=snapshot)))
    return console.file.getvalue()


def snapshot(tickets, **changes):
    scheduler = Scheduler(rng=random.Random(1))
    for number in range(tickets):
        one = samples.ticket(f"t{number}", session=f"s{number}")
        scheduler.submit(structs.replace(one, **changes), PoolSettings(), 0.0)
    scheduler.poll(0.0)
    return scheduler.snapshot(3.0)


def test_an_idle_proxy_says_so():
    text = shown(snapshot(0))
    assert "serving on 127.0.0.1:8080, 127.0.0.1:11435 (process 7): 0 requests" in text
    assert "no model call yet" in text


def test_pools_and_requests_are_there_and_those_that_wait_say_why():
    made = snapshot(9)
    pool = made.pools[0]
    text = shown(made)
    assert str(pool.key) in text
    assert f"{pool.in_flight} of {pool.limit}" in text
    waiting = [one for one in pool.tickets if one.state != "in flight"]
    assert waiting
    assert all(one.reason in text for one in waiting)
    rows = [line for line in text.splitlines() if "│ s" in line]
    assert len(rows) == 9
    assert " 3 s " in rows[0]
    assert "in flight" in rows[-1], "those that wait come first"


def test_a_subscriptions_windows_and_its_wall_are_there():
    made = snapshot(1)
    windows = (WindowView("5h", 0.62, "allowed", 8_280.0, 18_000.0), WindowView("7d", None, "", None, None))
    pool = replace(made.pools[0], windows=windows, wall=WallView("usage_limit_reached", 600.0))
    text = shown(replace(made, pools=(pool,)))
    for words in (
        "5h: 62% used, allowed, renews in 2 h 18 min",
        "7d: nothing is known",
        "usage_limit_reached, for 10 min",
    ):
        assert words in text
    tried = replace(pool, wall=WallView("usage_limit_reached", 0.0))
    assert "being tried again" in shown(replace(made, pools=(tried,)))


def test_what_a_person_said_and_what_it_takes_to_say_more_is_there():
    made = snapshot(9)
    text = shown(replace(made, pools=(replace(made.pools[0], paused=True, cap=3),)))
    assert "paused by a person" in text
    assert "at most 3 at once" in text
    assert all(one.ticket.id in text for one in made.pools[0].tickets)


def test_a_long_queue_is_counted():
    text = shown(snapshot(MAX_TICKETS + 7))
    assert "and 7 more" in text


def test_names_of_requests_are_neither_markup_nor_control_characters():
    text = shown(snapshot(1, agent="[red]a[/red]\x1b[2J", model="m\n"))
    assert "[red]a[/red]?[2J" in text
    assert "\x1b" not in text


def test_budgets_say_what_is_spent_of_what():
    budget = Budget(scope=Scope.GROUP, name="reviewers", tokens=5000, micro_usd=2_000_000)
    view = BudgetView(budget, spent=Spend(1200, 300_000), reserved=Spend(50, 0), renews_in_s=None)
    text = shown(replace(snapshot(0), budgets=(view, replace(view, renews_in_s=600))))
    for words in ("group reviewers, per run", "1,200 tokens, $0.3000", "50 tokens", "5,000 tokens, $2.00", "in 10 min"):
        assert words in text
