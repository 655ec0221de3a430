"""What is news is in test_news.py."""

import logging

import pytest

from hivemind_addon.api.events import PersonActed, PoolBlocked, Submitted, TicketEnded
from hivemind_addon.api.ticket import PoolKey
from hivemind_addon.proxy.observe.log import NOTICE, LogObserver
from tests.core.samples import ticket

POOL = PoolKey("host.test", "key-1", "model")
EVENTS = (
    PoolBlocked(at=0.0, pool=POOL, until=1.0, reason="429"),
    PoolBlocked(at=1.0, pool=POOL, until=31.0, reason="429"),
    PersonActed(at=2.0, text="paused by a person"),
)


@pytest.mark.parametrize(("level", "lines"), [(logging.DEBUG, 3), (logging.INFO, 2), (logging.WARNING, 1)])
def test_each_line_goes_to_the_log_at_its_level(caplog, level, lines):
    observer = LogObserver()
    with caplog.at_level(level, logger="hivemind"):
        for event in EVENTS:
            observer(event)
    assert len(caplog.records) == lines
    assert (caplog.records[-1].levelno, caplog.messages[-1]) == (logging.WARNING, "hivemind: paused by a person")


def test_what_explains_a_slow_hour_is_above_what_mitmproxy_says_of_every_connection(caplog):
    with caplog.at_level(logging.INFO, logger="hivemind"):
        LogObserver()(EVENTS[1])
    assert [record.levelno for record in caplog.records] == [NOTICE]
    assert logging.INFO < NOTICE < logging.WARNING


def test_a_line_about_a_ticket_has_its_agents_name(caplog):
    observer = LogObserver()
    end = TicketEnded(
        at=1.0, ticket_id="t1", pool=POOL, end="gave up", reason="spent attempts", attempts=3, waited_s=0.5,
        ambiguous_resends=0, last_outcome="500",
    )  # fmt: skip
    with caplog.at_level(logging.INFO, logger="hivemind"):
        observer(Submitted(at=0.0, ticket=ticket("t1", session="reviewer-1")))
        observer(end)
        observer(end)  # forgotten: nothing is kept of what has ended
    assert [text.startswith("hivemind: reviewer-1: t1 gave up") for text in caplog.messages] == [True, False]
