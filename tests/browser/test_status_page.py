"""The status page in a real browser: it lives, it is legible, it shows names as text, and it survives the proxy."""

import re

import msgspec
import pytest
from playwright.sync_api import expect

from hivemind_addon.kernel.values.snapshot import (
    AccountBlockView,
    BudgetView,
    Counters,
    LearnedView,
    MeterView,
    PoolView,
    RequestState,
    Snapshot,
    TicketView,
    WindowView,
)
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import Demand, PoolKey, Ticket, Usage
from hivemind_addon.proxy.api.report import LogLine, ProxyView, Report, SessionStats, StatsView
from hivemind_addon.proxy.page.document import ASSETS, make_document
from lab.running_server import running_server
from tests.browser.conftest import look
from tests.browser.team import XSS, fleet
from tests.e2e.proxy import free_port
from tests.tools.dash.samples import context

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

KEY = PoolKey("api.test", "key-1", "big*")


def test_it_lives_while_requests_are_held(page, tmp_path):
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    with fleet(tmp_path) as team:
        page.goto(team.page)
        expect(page.locator("#state")).to_have_text("serving")
        expect(page.locator("#pools")).to_contain_text("No model call yet")
        team.let_run()
        expect(page.locator("#queue")).to_contain_text("concurrency limit")
        expect(page.locator("#agents")).to_contain_text("worker-3")
        expect(page).to_have_title(re.compile(r"hivemind \(\d+ waiting\)"))
        delivered = page.locator("#totals > div", has_text="delivered").locator("b")
        team.answer_one()
        expect(delivered).to_have_text("1")
        expect(page.locator("#pools")).to_contain_text("input tokens")
        look_at_all_sizes(page)
        team.finish()
        expect(delivered).to_have_text("13")
        expect(page.locator("#queue")).to_be_hidden()
        expect(page.locator("#budgets")).to_contain_text("everyone, per day")
        # Names are text, whatever stands in them.
        expect(page.locator("#agents")).to_contain_text("<script>")
        assert page.locator("main img, main script").count() == 0
        expect(page).to_have_title("hivemind")
    assert not errors


def look_at_all_sizes(page):
    """Screenshots; and what a person cannot read is a failure."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width, height in ((1280, 1100), (360, 780)):
            page.set_viewport_size({"width": width, "height": height})
            look(page, f"status-page-{scheme}-{width}")
            page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
        ground, text = (
            page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
        )
        assert (_brightness(ground) > _brightness(text)) is (scheme == "light")
    page.set_viewport_size({"width": 1280, "height": 800})


def _brightness(colour):
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3])


def serve(page):
    """The page itself, without a proxy."""
    document, policy = make_document()
    headers = {"content-security-policy": policy, "content-type": "text/html"}
    page.route("http://hivemind.test/", lambda route: route.fulfill(body=document, headers=headers))

    def fulfill(route):
        content_type, content = ASSETS[route.request.url.rpartition("/")[2]]
        route.fulfill(body=content, headers={"content-type": content_type})

    page.route("http://hivemind.test/page/*", fulfill)


def shown(page, report):
    """The page over a report that is made here."""
    serve(page)
    page.route("http://hivemind.test/report.json", lambda route: route.fulfill(body=msgspec.json.encode(report)))
    page.goto("http://hivemind.test/")
    expect(page.locator("#about")).to_contain_text("version 9")


def ticket(number, **changes):
    fields = {
        "id": f"t{number}",
        "pool": KEY,
        "agent": f"agent-{number}",
        "session": f"s{number}",
        "model": "m",
        "demand": Demand(),
        "arrived_at": 0,
        "deadline_at": 600,
        "shed_at": 590,
    }
    return Ticket(**fields | changes)


def session(name, parent="", **changes):
    fields = {
        "agent": f"agent-{name}", "session": name, "parent_session": parent, "model": "m", "tickets": 3, "delivered": 1,
        "lost": 1, "shed": 1, "cancelled": 0, "retries_absorbed": 0, "waited_s": 200, "usage": Usage(),
        "tokens": 2_500_000, "micro_usd": 1_234_567, "is_priced": False, "seen_ago_s": 7300,
    }  # fmt: skip
    return SessionStats(**fields | changes)


def test_everything_that_a_report_can_hold_is_shown(page):
    pool = PoolView(
        key=KEY,
        account_name="Acme <b>Labs</b>",
        in_flight=1,
        bypassing=1,
        limit=2,
        queued=2,
        breaker="open",
        blocked_for_s=12,
        meters=(MeterView("input-tokens", "bucket", 40_000, 1_000, 90),),
        tickets=(
            TicketView(ticket(1), RequestState.QUEUED, "rate limit", 1, 0, 30, 12.2, why="rate limit"),
            TicketView(ticket(2), RequestState.BACKING_OFF, "", 2, 2, 150, 0.2, why="backing off: attempt 2 failed"),
            TicketView(ticket(3, session="s-mother"), RequestState.IN_FLIGHT, "", 0, 1, 8),
        ),
        account_block=AccountBlockView("5-hour limit", 7260),
        windows=(WindowView("5h", 1.02, "rejected", 7260, 18_000), WindowView("7d", None, "", None, None)),
        paused=True,
        cap=2,
        learned=(LearnedView("ceiling", "2 at a time"),),
        breaker_tries_in_s=3,
    )
    budgets = (
        BudgetView(
            Budget(Scope.GROUP, "reviewers", Period.RUN, micro_usd=20_000_000), Spend(5, 21_000_000), Spend(), None
        ),
    )
    sessions = (
        session("a", "b"),
        session("b", "a"),
        session("self", "self"),
        session("s-mother"),
        session("s-mother", agent="namesake"),
        session("child", "s-mother", agent=XSS),
    )
    stats = StatsView(
        sessions=(*sessions, *(session(f"many-{number}", seen_ago_s=9000) for number in range(150))),
        log=(LogLine(5, "WARNING", f"guard: {XSS}", None, None), LogLine(1, "INFO", "fine", "t", KEY)),
    )
    view = ProxyView(pid=1, port=8080, listens=("127.0.0.1:8080",), confdir="", hosts=(), version="9", began_wall=0)
    counters = Counters(tickets=9, delivered=4, guard_trips=2)
    snapshot = Snapshot(at=0, stopping=True, pools=(pool,), counters=counters, budgets=budgets)
    contexts = (
        context(XSS, XSS, window_tokens=None, tokens=12_345, cache_lapses_in_s=0.0, is_full=False),
        context("ada", compactions=2, newest_before_tokens=150_000, newest_after_tokens=20_000, lost_tokens=250_000),
    )
    report = Report(version=1, proxy=view, snapshot=snapshot, stats=stats, told_wall=200_000, contexts=contexts)
    shown(page, report)
    for area, texts in {
        "#state": ["stopping"],
        "#notices": ["2 guard trips", "stopping"],
        "#pools": [
            "Acme <b>Labs</b>", "the account's limit is spent", "paused by a person", "told to wait 12 s", "provider down, one request tries in 3 s",
            "1 past the scheduler",
            "5-hour limit: for 2 h 1 min", "1 of 2, capped at 2", "1,000 of 40k left, full in 2 min",
            "102 % used, rejected, anew in 2 h 1 min", "ceiling 2 at a time",
        ],
        "#queue": ["in about 12 s", "any moment", "backing off"],
        "#agents": ["agent-a", "agent-b", "agent-self", "≥ $1.23", "2.5M", "idle 2 h 2 min", XSS, "and 56 more"],
        "#contexts": [XSS, "12k", "cold", "83 % full", "166k of 200k", "+4,250", "warm for 4 min", "2: 150k → 20k"],
        "#budgets": ["group reviewers, per run", "$21.00 of $20.00"],
        "#log": [XSS],
    }.items():  # fmt: skip
        for text in texts:
            expect(page.locator(area)).to_contain_text(text)
    assert page.locator("main img, main script, main b b").count() == 0
    look(page, "status-page-everything")


def test_a_report_of_another_version_is_not_guessed_at(page):
    view = ProxyView(pid=1, port=1, listens=(), confdir="", hosts=(), version="9")
    snapshot = Snapshot(at=0, stopping=False, pools=(), counters=Counters())
    serve(page)
    page.route(
        "http://hivemind.test/report.json",
        lambda route: route.fulfill(body=msgspec.json.encode(Report(version=2, proxy=view, snapshot=snapshot))),
    )
    page.goto("http://hivemind.test/")
    expect(page.locator("#about")).to_contain_text("of another version")


def test_a_proxy_that_dies_is_gone_and_comes_back(page, tmp_path, monkeypatch):
    port = free_port()
    monkeypatch.setattr("tests.e2e.proxy.free_port", lambda: port)
    with fleet(tmp_path) as team:
        page.goto(team.page)
        expect(page.locator("#state")).to_have_text("serving")
        team.proxy.stop()
        expect(page.locator("#state")).to_have_text("gone")
        expect(page.locator("#about")).to_contain_text("does not answer")
        look(page, "status-page-gone")
    with fleet(tmp_path):
        expect(page.locator("#state")).to_have_text("serving")


def test_another_site_can_neither_read_it_nor_frame_it(page, tmp_path):
    with fleet(tmp_path) as team, running_server() as other:
        page.goto(f"{other.url}/")
        outcome = page.evaluate(
            """async (url) => {
                const read = await fetch(url + "report.json").then((answer) => answer.text(), () => "refused");
                const frame = document.createElement("iframe");
                frame.src = url;
                await new Promise((done) => { frame.onload = done; document.body.append(frame); });
                let inside = "";
                try { inside = frame.contentDocument.body.textContent; } catch { inside = "refused"; }
                return [read, inside];
            }""",
            team.page,
        )
        assert "refused" in outcome[0]
        assert "hivemind" not in outcome[1]
