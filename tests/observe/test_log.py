"""What is news is in test_news.py."""

import logging

import pytest

from hivemind_addon.core.events import PersonActed, PoolBlocked
from hivemind_addon.core.ticket import PoolKey
from hivemind_addon.observe.log import LogObserver

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
