from hivemind_addon.tools.tasks.graph import TableWait, Waits


def test_a_wait_is_over_when_all_that_it_names_are():
    waits = Waits()
    number = waits.begin("parent", ["a", "b"])
    waits.look_again({"a"}.__contains__)
    assert waits.has_open("parent")
    waits.look_again({"a", "b"}.__contains__)
    assert not waits.has_open("parent")
    waits.look_again(set().__contains__)  # nor is it asked about again
    assert dict(waits) == {number: TableWait("parent", ("a", "b"), is_over=True)}


def test_a_wait_for_nothing_is_over_at_once():
    waits = Waits()
    waits.begin("", [])
    waits.look_again(set().__contains__)
    assert [wait.is_over for _, wait in waits] == [True]


def test_a_wait_ends_once():
    waits = Waits()
    number = waits.begin("parent", ["a"])
    assert waits.has("parent")
    assert waits.end(number) == TableWait("parent", ("a",))
    assert waits.end(number) is None
    assert not waits.has("parent")


def test_numbers_are_never_given_again():
    waits = Waits()
    first = waits.begin("", ["a"])
    waits.end(first)
    assert waits.begin("", ["a"]) != first


def test_whoever_goes_takes_all_its_waits_with_it():
    waits = Waits()
    for waiter in ("one", "other", "one"):
        waits.begin(waiter, ["a"])
    waits.forget("one")
    assert [wait.waiter for _, wait in waits] == ["other"]


def test_waits_may_be_ended_while_they_are_gone_through():
    waits = Waits()
    numbers = [waits.begin("", [name]) for name in "abc"]
    assert [number for number, _ in waits if waits.end(number)] == numbers
    assert list(waits) == []


def test_somebody_outside_is_no_task_that_waits():
    waits = Waits()
    waits.begin("", ["a"])
    waits.begin("parent", ["b"])
    waits.begin("parent", ["c", "b"])
    assert waits.of_tasks() == {"parent": ["b", "c", "b"]}
