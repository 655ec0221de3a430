"""Start times alone: equal agents as they came, and one with many calls behind all others."""

from msgspec.structs import replace

from hivemind_addon.kernel.order.entry import QueueEntry
from hivemind_addon.kernel.order.shares import StartTimes
from hivemind_addon.kernel.values.ticket import Priority
from tests.kernel.samples import ticket


class Heads:
    """Each pool's head; every call takes a second."""

    def __init__(self) -> None:
        self.starts = StartTimes()
        self.waiting: dict[str, QueueEntry] = {}
        self.came = 0

    def come(self, name: str, agent: str = "", priority: Priority = Priority.NORMAL) -> None:
        self.came += 1
        place = QueueEntry(
            ticket=replace(ticket(name, session=agent or name), priority=priority), wait_began_at=float(self.came)
        )
        place.enrol(self.came, float(self.came))
        place.bonus_s = (Priority.NORMAL - priority) * 30.0
        self.waiting[name] = place
        self.starts.came(place)

    def serve(self, *, ends: bool = True, expected_s: float = 1.0) -> str:
        name = min(self.waiting, key=lambda name: self.starts.key(self.waiting[name]))
        place = self.waiting.pop(name)
        place.charged_s = expected_s
        self.starts.serve(place, self.starts.start_s(place))
        place.was_sent = True
        self.starts.settle(place, 1.0 if ends else 0.0)
        if ends:
            self.starts.gone(place)
        else:
            self.waiting[name] = place
        return name


def test_equal_agents_are_served_in_the_order_in_which_they_came():
    heads = Heads()
    for name in ("c", "a", "b"):
        heads.come(name)
    assert [heads.serve() for _ in range(3)] == ["c", "a", "b"]


def test_one_with_many_calls_waits_for_all_others_with_each_further_one():
    heads = Heads()
    for number in range(4):
        heads.come(f"many{number}", agent="many")
    heads.come("x")
    heads.come("y")
    assert [heads.serve() for _ in range(6)] == ["many0", "x", "y", "many1", "many2", "many3"]


def test_what_nobody_else_asked_for_is_nobodys_debt_and_a_newcomer_gets_nothing_of_the_past():
    heads = Heads()
    for number in range(5):
        heads.come(f"old{number}", agent="old")
        assert heads.serve() == f"old{number}"
    heads.come("old5", agent="old")
    for number in range(3):
        heads.come(f"new{number}", agent="new")
    assert [heads.serve() for _ in range(4)] == ["old5", "new0", "new1", "new2"]


def test_one_that_is_tried_again_keeps_its_place_and_pays_once():
    heads = Heads()
    heads.come("x")
    assert heads.serve(ends=False) == "x"
    heads.come("y")
    assert heads.serve(ends=False) == "x"
    assert heads.serve() == "x"
    heads.come("x2", agent="x")
    assert heads.serve() == "y"
    assert heads.serve() == "x2"


def test_what_was_expected_wrongly_is_put_right():
    heads = Heads()
    heads.come("x1", agent="x")
    assert heads.serve(expected_s=100.0) == "x1"
    for name in ("y1", "y2", "y3"):
        heads.come(name, agent="y")
    heads.come("x2", agent="x")
    assert heads.serve() == "y1"
    assert "x2" in {heads.serve(), heads.serve()}


def test_a_class_and_the_front_go_before_fairness():
    heads = Heads()
    heads.come("low", priority=Priority.LOW)
    heads.come("usual")
    heads.come("high", priority=Priority.HIGH)
    heads.come("front")
    heads.waiting["front"].front = -1
    assert [heads.serve() for _ in range(4)] == ["front", "high", "usual", "low"]


def test_what_is_over_is_forgotten():
    heads = Heads()
    for number in range(5_000):
        heads.come(f"agent{number}")
        heads.serve()
    assert not heads.starts._tickets_s
    assert len(heads.starts._agents_s) <= 600
