"""Events are kept as they are until somebody looks, and nobody can tell."""

import logging

import pytest

from hivemind_addon.kernel.values.events import AttemptEnded
from hivemind_addon.proxy.api import event_text
from hivemind_addon.proxy.record import history
from hivemind_addon.proxy.record.buffer import EVERY_S, MOST, EventBuffer
from hivemind_addon.proxy.record.history import Histories
from hivemind_addon.proxy.record.stats import Stats
from hivemind_addon.proxy.record.sums import Sums
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.world import World
from tests.proxy.record.samples import ended, over, started, submitted


def life(ticket_id="t"):
    return submitted(ticket_id), started(ticket_id), ended(ticket_id), over(ticket_id)


def test_a_request_that_nobody_looks_at_is_neither_summed_nor_worded():
    buffer, heard = EventBuffer(), []
    buffer(ended(at=-1.0))  # not long ago
    buffer.feed(heard.append)
    for event in life():
        buffer(event)
    assert heard == []
    buffer.flush()
    assert heard == [*life()]
    buffer.flush()
    assert len(heard) == 4, "once"


def test_what_is_kept_back_is_bounded_and_stays_in_order():
    buffer, heard = EventBuffer(), []
    buffer.feed(heard.append)
    events = [submitted(str(number)) for number in range(MOST + 1)]
    for event in events:
        buffer(event)
    assert heard == events[:MOST]


def test_what_a_reader_says_to_it_is_handed_on_at_once():
    buffer, heard = EventBuffer(), []
    buffer.feed(heard.append)
    buffer.feed(lambda event: buffer(over()) if isinstance(event, AttemptEnded) else None)
    buffer(ended())
    buffer.flush()
    assert heard == [ended(), over()]


def test_an_attempt_that_ends_has_it_handed_on_now_and_then():
    buffer, heard = EventBuffer(), []
    buffer.feed(heard.append)
    for event, so_far in (
        (submitted(at=9.0), 0),
        (ended(at=10.0), 2),
        (ended(at=10.0 + EVERY_S - 0.1), 2),
        (over(at=99.0), 2),
        (ended(at=10.0 + EVERY_S), 5),
    ):
        buffer(event)
        assert len(heard) == so_far


def test_a_reader_that_fails_hears_no_more_and_the_others_go_on(caplog):
    buffer, heard = EventBuffer(), []

    def failing(event):
        raise RuntimeError(event.at)

    buffer.feed(failing)
    buffer.feed(heard.append)
    for _ in range(2):
        buffer(submitted())
        with caplog.at_level(logging.ERROR, logger="hivemind"):
            buffer.flush()
    assert len(heard) == 2
    assert len(caplog.records) == 1


def test_nothing_is_worded_until_a_history_is_read(monkeypatch):
    worded = []
    monkeypatch.setattr(history, "text_of", lambda event: worded.append(event) or event_text.text_of(event))
    histories = Histories()
    for event in life():
        histories(event)
    assert worded == []
    assert histories.of("t").end == "delivered"
    assert len(worded) == 3
    histories.of("t")
    assert len(worded) == 3, "once"


@pytest.fixture(scope="module")
def night():
    """Everything that happened in a simulated incident, and when it ended."""
    events = []
    world = World(cases()["stress"].scenario, seed=1, listen=events.append)
    world.run()
    return events, world.now


@pytest.mark.parametrize("every", [1, 7, 10_000])
def test_who_looks_sees_the_same_however_late_it_is_summed(night, every):
    events, now = night
    at_once, buffer = Sums(), EventBuffer()
    late = Sums(buffer.flush)
    buffer.feed(late)
    for number, event in enumerate(events):
        at_once(event)
        buffer(event)
        if not number % every:
            assert Stats(late).view(event.at) == Stats(at_once).view(event.at)
    assert Stats(late).view(now) == Stats(at_once).view(now)
    assert late.counts() == at_once.counts()
