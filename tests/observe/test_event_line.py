import json
from typing import get_args

import pytest
from msgspec.structs import replace

from hivemind_addon.api import events
from hivemind_addon.api.ticket import Ticket
from hivemind_addon.proxy.observe.event_line import dropped_line, event_line
from tests.observe.test_news import TICKET, make


@pytest.mark.parametrize("kind", get_args(events.Event), ids=lambda kind: kind.__name__)
def test_every_event_is_one_line_of_plain_json_with_all_its_fields(kind):
    line = event_line(make(kind), 1_700_000_000.1234)
    assert line.count(b"\n") == 1
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
        *("request_hash", "weight", "max_fan_out", "budgets", "price", "expected"),
        *("group", "task", "client", "idempotency_key"),
    }


def test_a_name_that_is_no_text_is_a_line_all_the_same():
    line = event_line(make(events.Submitted, ticket=replace(TICKET, agent="a\udcff")), 0.0)
    assert json.loads(line)["ticket"]["agent"] == "a\udcff"


def test_lost_lines_are_a_line():
    assert json.loads(dropped_line(7, 5.0)) == {"v": 1, "wall": 5.0, "event": "LinesDropped", "lines": 7}
