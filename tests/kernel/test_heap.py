from hivemind_addon.kernel.heap import KeyedHeap


def test_a_heap_keeps_no_more_dead_entries_than_living_ones_and_a_few():
    heap: KeyedHeap[int] = KeyedHeap()
    for key in range(10_000):
        heap.put(key % 10, key)
    assert len(heap._living) == 10
    assert len(heap._heap) <= 2 * 10 + 17


def test_an_empty_heap_holds_nothing():
    heap: KeyedHeap[str] = KeyedHeap()
    heap.put("a", 1)
    heap.put("a", 0)
    heap.put("b", 2)
    heap.drop("a")
    heap.drop("a")
    assert (heap.first, heap.first_key, list(heap._living)) == ("b", 2, ["b"])
    heap.drop("b")
    assert (heap.first, heap.first_key, list(heap._living)) == (None, float("inf"), [])


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
