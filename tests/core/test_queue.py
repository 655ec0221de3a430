from hivemind_addon.core.queue import KeyedHeap, Place, Queue
from tests.core.samples import ticket


def queue_of(*ticket_ids: str) -> Queue:
    queue = Queue()
    for ticket_id in ticket_ids:
        queue.append(Place(ticket=ticket(ticket_id, session=ticket_id[0]), wait_began_at=0))
    queue.wake(0)
    return queue


def served(queue: Queue, now: float = 0) -> list[str]:
    order = []
    queue.wake(now)
    while head := queue.head():
        order.append(head.ticket.id)
        queue.remove(head.ticket.id)
    return order


def test_first_submitted_is_first_served():
    assert served(queue_of("c", "a", "b")) == ["c", "a", "b"]


def test_a_ticket_that_backs_off_keeps_its_place():
    queue = queue_of("a", "b", "c")
    place = queue.remove("a")
    queue.put_back(place, not_before=5)
    queue.wake(4.9)
    assert queue.head().ticket.id == "b"
    assert served(queue, now=5) == ["a", "b", "c"]


def test_an_expedited_ticket_goes_to_the_front_and_a_later_one_before_it():
    queue = queue_of("a", "b", "c")
    assert queue.expedite("b")
    assert queue.expedite("c")
    assert served(queue) == ["c", "b", "a"]


def test_an_expedited_ticket_that_backs_off_is_first_once_it_is_due():
    queue = queue_of("a", "b")
    queue.put_back(queue.remove("b"), not_before=5)
    assert queue.expedite("b")
    queue.wake(1)
    assert queue.head().ticket.id == "a"
    queue.wake(5)
    assert queue.head().ticket.id == "b"


def test_an_unknown_ticket_cannot_be_expedited_or_removed():
    queue = queue_of("a")
    assert not queue.expedite("x")
    assert queue.remove("x") is None


def test_the_head_of_another_session_is_the_first_one_of_its_order():
    queue = queue_of("a1", "a2", "b1", "c1")
    assert queue.head_of_others("a").ticket.id == "b1"
    assert queue.head_of_others(None).ticket.id == "a1"
    assert queue_of("a1").head_of_others("a") is None


def test_it_knows_the_next_instants():
    queue = queue_of("a")
    assert queue.next_shed_at() == 600
    assert queue.next_due_at() == float("inf")
    queue.put_back(queue.remove("a"), not_before=5)
    assert queue.next_due_at() == 5
    assert queue.soonest().ticket.id == "a"
    assert queue.first_to_shed(599) is None
    assert queue.first_to_shed(600).ticket.id == "a"
    queue.remove("a")
    assert queue.next_shed_at() == queue.next_due_at() == float("inf")


def test_a_heap_keeps_no_more_dead_entries_than_living_ones_and_a_few():
    heap: KeyedHeap[int] = KeyedHeap()
    for key in range(10_000):
        heap.put(key % 10, key)
    assert len(heap) == 10
    assert len(heap._heap) <= 2 * 10 + 65


def test_an_empty_heap_holds_nothing():
    heap: KeyedHeap[str] = KeyedHeap()
    heap.put("a", 1)
    heap.put("a", 0)
    heap.drop("a")
    heap.drop("a")
    assert heap.first() is None
    assert heap._heap == []


def test_a_changed_key_moves_an_item():
    heap: KeyedHeap[str] = KeyedHeap()
    heap.put("a", 1)
    heap.put("b", 2)
    heap.put("a", 3)
    assert heap.first() == (2, "b")
