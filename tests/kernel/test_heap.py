import pytest

from hivemind_addon.kernel.heap import NOTHING, KeyedHeap


def test_a_heap_keeps_no_more_dead_entries_than_living_ones_and_a_few():
    heap: KeyedHeap[int] = KeyedHeap()
    for key in range(10_000):
        heap.put(key % 10, key)
    assert len(heap) == 10
    assert heap._heap is not None
    assert len(heap._heap) <= 2 * 10 + 17


def test_an_empty_heap_holds_nothing():
    heap: KeyedHeap[str] = KeyedHeap()
    heap.put("a", 1)
    heap.put("a", 0)
    heap.put("b", 2)
    heap.drop("a")
    heap.drop("a")
    assert (heap.first, heap.first_key, list(heap)) == ("b", 2, ["b"])
    heap.drop("b")
    assert (heap.first, heap.first_key, list(heap)) == (None, float("inf"), [])
    assert heap._heap is None


def test_one_that_is_alone_is_first_without_a_heap():
    heap: KeyedHeap[str] = KeyedHeap()
    heap.put("a", 1)
    heap.put("a", 2)
    heap.drop("b")
    assert (heap.first, heap.first_key, len(heap), list(heap)) == ("a", 2, 1, ["a"])
    assert (heap.key_of("a"), heap.key_of("b"), "a" in heap, "b" in heap) == (2, None, True, False)
    assert heap._heap is None
    heap.put("b", 2)
    assert heap.first == "a"


def test_a_changed_key_moves_an_item():
    heap: KeyedHeap[str] = KeyedHeap()
    heap.put("a", 1)
    heap.put("b", 2)
    heap.put("a", 3)
    assert (heap.first_key, heap.first) == (2, "b")
    assert heap.key_of("a") == 3
    assert heap.key_of("c") is None


def test_the_same_key_again_keeps_the_place_among_equals():
    heap: KeyedHeap[str] = KeyedHeap()
    heap.put("a", 1)
    heap.put("b", 1)
    heap.put("a", 1)
    assert (heap.first_key, heap.first) == (1, "a")


def test_what_stands_for_an_empty_heap_stays_empty():
    NOTHING.drop("a")
    assert (len(NOTHING), NOTHING.first, list(NOTHING)) == (0, None, [])
    with pytest.raises(TypeError):
        NOTHING.put("a", 1.0)
