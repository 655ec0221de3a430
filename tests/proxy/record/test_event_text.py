"""Every event in words, and as a line of JSON."""

import json
import logging
from typing import get_args

from msgspec import structs

from hivemind_addon.kernel.values import events
from hivemind_addon.kernel.values.ticket import Ticket
from hivemind_addon.proxy.api.event_text import dropped_line, event_line, level_of, line_of, text_of
from tests.proxy.record.samples import TICKET, make

POOL = "host.test/key-1/model"


def test_every_event_is_one_line_that_begins_with_what_it_is_about():
    for kind in get_args(events.Event):
        line = line_of(make(kind))
        fields = {field.name for field in structs.fields(kind)}
        pool_or_none = f"{POOL}: " if "pool" in fields else ""
        subject = "agent-1 (session s): " if "session" in fields else pool_or_none
        subject = "ticket-1: " if "ticket_id" in fields else subject
        assert line.startswith(subject), kind
        assert "\n" not in line, kind
        assert line.removeprefix(subject) == text_of(make(kind)), kind


def test_how_much_it_matters_and_what_a_person_reads():
    about_401 = {"end": "gave up", "attempts": 1, "waited_s": 0.0, "last_outcome": "401 authentication_error"}
    blocked = (events.PoolBlocked, {"at": 0.0, "until": 12.34}, logging.INFO, "told to wait 12.3 s (because)")
    window = {"window": "5h", "used": 0.416, "status": "allowed", "resets_in_s": 600.0}
    warned = {"window": "7d", "used": None, "status": "allowed_warning", "resets_in_s": None}
    for kind, values, level, text in (
        (events.TicketEnded, {"end": "delivered"}, logging.DEBUG, "delivered (because"),
        (events.TicketEnded, {"end": "cancelled"}, logging.DEBUG, "cancelled (because"),
        (events.TicketEnded, {"end": "shed"}, logging.INFO, "shed (because"),
        (events.TicketEnded, {"end": "refused"}, logging.DEBUG, "refused (because"),
        (
            events.TicketEnded,
            about_401,
            logging.WARNING,
            "gave up (because: 401 authentication_error) after 1 attempt, 0.0 s waited",
        ),
        (events.BackedOff, {}, logging.DEBUG, "attempt 1 failed (because); again in 2.5 s"),
        (events.BackedOff, {"at": 1, "until": 1}, logging.DEBUG, "attempt 1 failed (because); again when it is its"),
        (events.BackedOff, {"attempt": 3}, logging.INFO, "attempt 3 failed"),
        blocked,
        (events.PoolBlocked, {"at": 0.0, "until": 86_400}, logging.INFO, "told to wait 1 d 0 h (because)"),
        (events.BudgetWarned, {}, logging.WARNING, "group reviewers has spent most of its budget: $4.30 of $5.00 per"),
        (events.PriceMissing, {}, logging.WARNING, "m has no known price, and the budget of group rev"),
        (events.BudgetSpent, {}, logging.WARNING, "group reviewers has spent its budget: $4.30 of $5.00 per day"),
        (
            events.AccountBlocked,
            {"at": 0.0, "until": 7384.0, "reason": "429"},
            logging.WARNING,
            "the account is refused for 2 h 4 min (429); who waits longer is held, the others are told; one looks every 5 ",
        ),
        (events.AccountUnblocked, {}, logging.WARNING, "the account is served again"),
        (
            events.WaitOverruled,
            {"idle_s": 60.0},
            logging.WARNING,
            "sent all the same: nothing went for 1 min, and only what was learned held it (told to wait)",
        ),
        (events.WindowUsed, window, logging.INFO, "window 5h 42% used (allowed), anew in 10 min"),
        (events.WindowUsed, warned, logging.WARNING, "window 7d (allowed_warning)"),
    ):
        event = make(kind, **values)
        told_level, told = level_of(event), text_of(event)
        assert (told_level, told[: len(text)]) == (level, text)


def test_every_event_is_one_line_of_plain_json_with_all_its_fields():
    for kind in get_args(events.Event):
        line = event_line(make(kind), 1_700_000_000.1234)
        assert line.count(b"\n") == 1, kind
        read = json.loads(line)
        assert (read["v"], read["event"], read["wall"]) == (1, kind.__name__, 1_700_000_000.123)
        assert set(kind.__struct_fields__) <= set(read)


def test_enums_and_pools_are_their_words():
    read = json.loads(event_line(make(events.Held), 0.0))
    assert read["reason"] == "rate limit"
    assert read["pool"] == {"host": "host.test", "account": "key-1", "model_group": "model"}


def test_a_ticket_has_no_field_that_could_hold_a_prompt_or_a_key():
    """A new field of a ticket is to be thought over: it is written to logs."""
    assert set(Ticket.__struct_fields__) == {
        *("id", "pool", "agent", "session", "model", "demand", "arrived_at", "deadline_at", "shed_at", "priority"),
        *("kind", "parent_session", "prefix", "prefix_tokens", "cached_tokens", "cold_tokens", "streamed"),
        *("request_hash", "weight", "max_fan_out", "budgets", "price", "needs_price", "expected"),
        *("group", "task", "client", "idempotency_key", "endpoints", "window_tokens", "cache_s", "only_reads"),
    }


def test_a_name_that_is_no_text_is_a_line_all_the_same():
    line = event_line(make(events.Submitted, ticket=structs.replace(TICKET, agent="a\udcff")), 0.0)
    assert json.loads(line)["ticket"]["agent"] == "a\udcff"


def test_lost_lines_are_a_line():
    assert json.loads(dropped_line(7, 5.0)) == {"v": 1, "wall": 5.0, "event": "LinesDropped", "lines": 7}
