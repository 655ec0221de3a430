import json

from hivemind_addon.kernel.values.events import BackedOff, BreakerChanged, MeterLearned, OddityNoted
from hivemind_addon.kernel.values.spend import Period
from hivemind_addon.kernel.values.ticket import Dimension, Outcome, OutcomeKind, PoolKey, Usage
from hivemind_addon.proxy.journal import rows as module
from hivemind_addon.proxy.journal.rows import Rows
from hivemind_addon.proxy.journal.tables import AttemptRow, BudgetRow, HappeningRow, LimitRow, TicketRow, WaitRow
from tests.proxy.journal.samples import POOL, booked, ended, held, life, settled, started, submitted

AHEAD_S = 1.7e9
"""Of the wall clock."""


def folded(*events, into=None):
    rows = Rows() if into is None else into
    for event in events:
        rows.take(event, event.at + AHEAD_S)
    return rows


def of(rows, kind):
    return [row for row in rows.each() if isinstance(row, kind)]


def test_a_request_is_one_ticket_its_attempts_and_its_waits():
    rows = folded(*life(task="task-1", idempotency_key="key-1", group="team"))
    (ticket,) = of(rows, TicketRow)
    assert (ticket.id, ticket.agent, ticket.session, ticket.task, ticket.idempotency_key, ticket.group) == (
        "t1",
        "agent-1",
        "s1",
        "task-1",
        "key-1",
        "team",
    )
    assert (ticket.pool, ticket.host, ticket.account) == (str(POOL), "api.anthropic.com", "org-1")
    assert (ticket.kind, ticket.priority, ticket.end, ticket.attempts) == ("turn", "normal", "delivered", 1)
    assert [one - AHEAD_S for one in (ticket.arrived, ticket.admitted, ticket.ended)] == [1000, 1002, 1008]
    (attempt,) = of(rows, AttemptRow)
    assert (attempt.outcome, attempt.status, attempt.input_tokens, attempt.output_tokens) == ("success", 200, 100, 9)
    assert (attempt.tokens, attempt.micro_usd, attempt.expected_tokens, attempt.expected_micro_usd) == (
        109,
        27,
        120,
        30,
    )
    assert [one - AHEAD_S for one in (attempt.began, attempt.ended)] == [1002, 1007]
    (wait,) = of(rows, WaitRow)
    assert (wait.ticket, wait.began - AHEAD_S, wait.position) == ("t1", 1000, 3)
    assert wait.reason == held().reason.value


def test_each_attempt_has_its_row_with_why_and_when_it_is_tried_again():
    failed = Outcome(OutcomeKind.OVERLOADED, "529 overloaded", status=529)
    rows = folded(
        submitted(),
        started(),
        settled(outcome=failed),
        BackedOff(at=1007, ticket_id="t1", pool=POOL, attempt=1, until=1009, reason="529 overloaded"),
        started(attempt=2, at=1009),
        settled(attempt=2, at=1010),
        ended(attempts=2),
    )
    first, second = of(rows, AttemptRow)
    assert (first.outcome, first.reason, first.retry_at - AHEAD_S) == ("overloaded", "529 overloaded", 1009)
    assert (second.attempt, second.outcome, second.retry_at) == (2, "success", None)
    (ticket,) = of(rows, TicketRow)
    assert (ticket.admitted - AHEAD_S, ticket.attempts) == (1002, 2)


def test_what_has_not_changed_is_not_written_again_and_what_changed_is_written_whole():
    rows = folded(submitted(), held())
    rows.written()
    assert len(rows) == 0
    folded(started(), into=rows)
    assert [type(row) for row in rows.each()] == [TicketRow, AttemptRow]
    assert rows.each()[0].agent == "agent-1"
    rows.written()
    folded(settled(), ended(), into=rows)
    ticket, attempt = rows.each()
    assert (ticket.end, ticket.admitted - AHEAD_S) == ("delivered", 1002)
    assert (attempt.waited_s, attempt.outcome) == (2.0, "success")


def test_another_file_gets_what_has_not_ended_and_how_accounts_stand():
    rows = folded(*life("over"), submitted("open"), started("open"), booked())
    rows.written()
    rows.begin(7)
    assert [(type(row), getattr(row, "run", 7)) for row in rows.each()] == [
        (TicketRow, 7),
        (AttemptRow, 7),
        (BudgetRow, 7),
    ]
    assert rows.each()[0].id == "open"


def test_what_the_file_has_of_an_account_is_older_than_what_was_booked_since():
    rows = folded(booked(spent=5, reserved=0))
    old = folded(booked(spent=1), booked(spent=2, name="agent-2"))
    rows.begin(1, of(old, BudgetRow))
    assert {row.name: row.spent_tokens for row in of(rows, BudgetRow)} == {"agent-1": 5, "agent-2": 2}


def test_the_last_word_on_an_account_counts_in_whatever_order_it_comes():
    rows = folded(booked(at=1005, spent=9), booked(at=1001, spent=4), booked(at=1001, spent=1, per=Period.HOUR))
    assert {row.per: row.spent_tokens for row in of(rows, BudgetRow)} == {"day": 9, "hour": 1}
    assert of(rows, BudgetRow)[0].began - AHEAD_S == 400


def test_a_tree_of_sessions_has_one_root():
    rows = folded(
        submitted("a", session="root"),
        submitted("b", session="child", parent_session="root"),
        submitted("c", session="grandchild", parent_session="child"),
        submitted("d", session="grandchild"),
        submitted("e", session="child", agent="another"),
    )
    assert {row.id: row.lineage for row in of(rows, TicketRow)} == {
        "a": "root",
        "b": "root",
        "c": "root",
        "d": "root",
        "e": "child",
    }


def test_a_request_of_a_merged_pool_is_the_other_ones_at_its_end():
    other = PoolKey(host="api.anthropic.com", account="org-2", model_group="sonnet")
    (ticket,) = of(folded(submitted(), ended(pool=other)), TicketRow)
    assert (ticket.account, ticket.pool) == ("org-2", str(other))


def test_all_else_is_a_happening_with_words_for_people_and_fields_for_programs():
    rows = folded(BreakerChanged(at=1, pool=POOL, state="open", reason="3 failures", before="closed"))
    (happening,) = of(rows, HappeningRow)
    assert (happening.event, happening.pool, happening.ticket) == ("BreakerChanged", str(POOL), "")
    assert "breaker open (3 failures)" in happening.text
    assert json.loads(happening.fields)["state"] == "open"


def learned(limit, kind="window", at=1.0):
    return MeterLearned(
        at=at, pool=POOL, meter="input-tokens", kind=kind, limit=limit, window_s=60, dimension=Dimension.INPUT_TOKENS
    )


def test_a_limit_is_written_when_it_has_changed_and_not_for_a_trifle():
    rows = folded(learned(1000), learned(1001), learned(1200), learned(1200), learned(1200, kind="bucket"))
    assert [(row.limit, row.kind, row.dimension) for row in of(rows, LimitRow)] == [
        (1000, "window", "input_tokens"),
        (1200, "window", "input_tokens"),
        (1200, "bucket", "input_tokens"),
    ]


def test_an_attempt_whose_beginning_was_missed_has_what_is_known_of_it():
    rows = folded(settled("unknown"), held("unknown"), ended("unknown"))
    (attempt,) = rows.each()
    assert (attempt.ticket, attempt.tokens, attempt.began - AHEAD_S) == ("unknown", 109, 1002)


def test_what_clients_and_providers_say_is_bounded_text_and_bounded_numbers():
    usage = Usage(input_tokens=10**30, output_tokens=1)
    rows = folded(
        submitted(agent="a" * 9999, session="\udcff\x00"),
        started(),
        settled(usage=usage),
        OddityNoted(at=1, pool=None, ticket_id=None, what="x" * 99_999),
        learned(float("nan")),
    )
    ticket, attempt, happening, limit = rows.each()
    assert len(ticket.agent) == 300
    assert ticket.session == "?\x00"
    assert attempt.input_tokens == 2**63 - 1
    assert (len(happening.text), happening.fields) == (300, "{}")
    assert limit.limit == 0


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 10)
    rows = folded(*(submitted(f"t{number}", session=f"s{number}") for number in range(100)))
    rows.written()
    rows.begin(1)
    assert [row.id for row in rows.each()] == [f"t{number}" for number in range(90, 100)]
    assert len(rows._open) == 10


def test_a_request_that_was_never_sent_has_no_attempt():
    for end in ("gave up", "shed", "refused", "cancelled"):
        rows = folded(submitted(), held(), ended(end=end, attempts=0, last_outcome="529"))
        (ticket,) = of(rows, TicketRow)
        assert (ticket.end, ticket.reason, ticket.admitted, of(rows, AttemptRow)) == (end, "done: 529", None, []), end
