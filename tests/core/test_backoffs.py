from hivemind_addon.proxy.core.lanes import QueueEntry
from hivemind_addon.proxy.core.meter import Meter
from hivemind_addon.proxy.core.meters import Backoffs
from tests.core.samples import requests_reading, ticket

ME = ticket("me")


def waiting(*due_at: float) -> Backoffs:
    backoffs = Backoffs()
    for number, at in enumerate(due_at):
        backoffs.add(QueueEntry(ticket=ticket(f"late{number}"), wait_began_at=0, not_before=at))
    return backoffs


def window(level: float, limit: float = 20) -> Meter:
    """Its window ends at 50."""
    meter = Meter.of(requests_reading(limit=limit, remaining=limit - 1, reset_in_s=50), 0)
    assert meter is not None
    meter.learn(requests_reading(limit=limit, remaining=limit - 1, reset_in_s=50), stamp=0, sent_at=0, now=0)
    meter.learn(requests_reading(limit=limit, remaining=level, reset_in_s=50), stamp=0, sent_at=0, now=0)
    return meter


def test_a_unit_is_kept_for_each_that_is_due_in_the_window():
    assert waiting(10, 20, 60).kept_of_meter(window(3), ME, 5) == 2


def test_nothing_for_those_who_are_due_already_or_just_before_the_end():
    assert waiting(4, 49.5).kept_of_meter(window(3), ME, 5) == 0


def test_at_most_half():
    assert waiting(*[10] * 15).kept_of_meter(window(3), ME, 5) == 10


def test_nothing_while_there_is_enough_for_all():
    assert waiting(10, 20).kept_of_meter(window(15), ME, 5) == 0


def test_a_ticket_keeps_nothing_from_itself():
    backoffs = waiting(10)
    (place,) = backoffs
    assert backoffs.kept_of_meter(window(3), place.ticket, 5) == 0


def test_a_bucket_keeps_nothing():
    bucket = Meter.of(requests_reading(limit=60, remaining=3, reset_in_s=57), 0)
    assert bucket is not None
    bucket.learn(requests_reading(limit=60, remaining=3, reset_in_s=57), stamp=0, sent_at=0, now=0)
    assert waiting(10).kept_of_meter(bucket, ME, 5) == 0


def test_one_that_goes_is_waited_for_no_longer():
    backoffs = waiting(10)
    backoffs.discard("late0")
    backoffs.discard("never tried")
    assert (len(backoffs), backoffs.kept_of_meter(window(3), ME, 5)) == (0, 0)
