"""One word for one state in every view, and the table of them in docs/glossary.md."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.values.snapshot import CONCURRENCY, AccountBlockView, LimitNeed, RequestState
from hivemind_addon.kernel.values.ticket import Reason
from hivemind_addon.proxy.api.command import WaitView
from hivemind_addon.proxy.api.pool_words import pool_state, queue_words, troubles, waiting_line, why_words
from hivemind_addon.proxy.api.replies import wait_words
from hivemind_addon.proxy.record.history import PAD, TicketHistory, present_line
from hivemind_addon.tools.dash.family import IDLE, family
from hivemind_addon.tools.dash.picture import PictureLook, picture
from hivemind_addon.tools.mcp.own import _request, _summary
from tests.tools.dash.samples import flying, pool, report, session, waiting

PAGE_SCRIPT = Path(__file__).parents[3] / "src" / "hivemind_addon" / "proxy" / "page" / "now.js"
GLOSSARY = (Path(__file__).parents[3] / "docs" / "glossary.md").read_text(encoding="utf-8")
WAITS = (
    Reason.PAUSED,
    Reason.BREAKER,
    Reason.ACCOUNT_BLOCK,
    Reason.MODEL_BLOCK,
    Reason.FUNDS,
    Reason.BACKOFF,
    Reason.LEADER,
    Reason.FAN_OUT,
    Reason.CONCURRENCY,
    Reason.BLOCKED,
    Reason.METER,
    Reason.ORDER,
    Reason.COORDINATOR,
)
"""What a ticket can wait for; the other reasons end one."""
NEED = LimitNeed("input-tokens", 7100, 3900, 40_000)
MAXIMUM = LimitNeed(CONCURRENCY, 1, 0, 8, 2, "concurrency.maximum of profile openai")


def rows(heading):
    """The first cells of a table of the glossary, below its line of heads."""
    table = GLOSSARY.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def test_the_glossary_lists_every_state_and_every_wait():
    assert rows("State") == [*RequestState, IDLE, pool_state(pool(queued=1))]
    assert rows("It waits for") == [reason.value for reason in WAITS]


def views_of(view):
    """Every view of one request that waits, as text."""
    made = report(pool(tickets=(view,), queued=1), sessions=[session(live=1)])
    (agent,) = family(made)
    wait = WaitView("pool", view.starts_in_s, view.position - 1, view.reason, view.why)
    return {
        "status and top": "\n".join(line.plain for line in picture(made, PictureLook(width=400, opened=None))),
        "a pool's line": queue_words(pool(tickets=(replace(view, position=1),), queued=1)).partition("(")[2],
        "agents": f"{agent.state}: {agent.next_request.why}",
        "mcp": f"{_summary([view])} {_request(pool(), view)}",
        "mitmweb": present_line(TicketHistory(ticket_id="t", agent="a"), view),
        "eta": wait_words(wait),
    }


@pytest.mark.parametrize(
    ("reason", "limit"),
    [*((reason, NEED if reason is Reason.METER else None) for reason in WAITS), (Reason.CONCURRENCY, MAXIMUM)],
)
def test_every_view_says_what_binds_in_the_same_words(reason, limit):
    state = RequestState.BACKING_OFF if reason is Reason.BACKOFF else RequestState.QUEUED
    view = waiting(
        state=state, reason=reason.value, limit=limit, why=why_words(reason, limit), position=3, starts_in_s=4.0
    )
    others = {word for word in (*RequestState, IDLE) if word != state} | {"behind", "held", "blocked"}
    for name, text in views_of(view).items():
        assert view.why in text, name
        story = text.partition("agents ─")[2] if name == "status and top" else text
        assert not [word for word in others if re.search(rf"\b{word}\b", story.replace(view.why, ""))], (name, text)
    lines = views_of(view)
    why = "" if reason is Reason.BACKOFF else f"{view.why} "  # the state says it
    assert re.split(f"{PAD}+", lines["mitmweb"]) == ["a", f"{state}, 3rd", "in 4 s", f"{why}[t]"]
    assert lines["eta"] == waiting_line(3, view.why, 4.0) == f"3rd; {view.why}, in about 4 s"


def test_the_page_has_its_words_from_the_report():
    script = PAGE_SCRIPT.read_text(encoding="utf-8")
    assert ".why" in script
    assert not re.search(r"behind others|for all|left_behind|needs \$", script)


def test_who_does_not_wait_is_in_flight_or_idle():
    made = report(pool(tickets=(flying(agent="b"),)), sessions=[session("c", "c")])
    assert {node.name: node.state for node in family(made)} == {"b": RequestState.IN_FLIGHT, "c": IDLE}


def test_what_keeps_a_pool_is_named_as_what_keeps_its_requests():
    kept = pool(paused=True, account_block=AccountBlockView("x", 60), breaker="open", blocked_for_s=3.0)
    for reason, words in troubles(kept).items():
        assert words.startswith(reason.value)
