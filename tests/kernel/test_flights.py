from msgspec.structs import replace

from hivemind_addon.kernel.order.entry import InFlight, QueueEntry
from hivemind_addon.kernel.values.ticket import Attempt
from tests.kernel.samples import ticket


def flying(ticket_id: str = "a", *, number: int = 1, request_hash: str = "h") -> QueueEntry:
    its = replace(ticket(ticket_id, session="s"), request_hash=request_hash)
    entry = QueueEntry(ticket=its, wait_began_at=0)
    entry.attempt = Attempt(ticket=its, number=number, admitted_at=5, stamp=1, in_flight=1)
    return entry


def attempt() -> Attempt:
    made = flying().attempt
    assert made is not None
    return made


def test_the_entry_of_an_attempt_is_found_until_it_ends():
    flights, one = InFlight(), flying()
    flights.add(one)
    sent = one.attempt
    assert flights.of(sent) is one
    assert flights.by_ticket.get("a") is one
    assert (len(flights), list(flights), list(flights.attempts)) == (1, [one], [sent])
    flights.remove(sent)
    assert flights.of(sent) is None
    assert (len(flights), one.attempt) == (0, None)


def test_another_attempt_of_the_same_ticket_is_another_one():
    flights = InFlight()
    flights.add(flying(number=2))
    assert flights.of(attempt()) is None


def test_attempts_for_the_same_request_are_alike():
    flights, first, second, other = InFlight(), flying("a"), flying("b"), flying("c", request_hash="other")
    for one in (first, second, other):
        flights.add(one)
    assert list(flights.alike(flying("d").ticket)) == [first, second]
    flights.remove(first.attempt)
    flights.remove(second.attempt)
    assert list(flights.alike(flying("d").ticket)) == []


def test_without_a_hash_nothing_is_alike():
    flights = InFlight()
    flights.add(flying("a", request_hash=""))
    assert list(flights.alike(flying("b", request_hash="").ticket)) == []
