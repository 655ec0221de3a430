"""What is learned of how long clients wait that do not announce it: who is held on, and who is shed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from hivemind_addon.kernel.limits.learned import Saved, read_saved
from hivemind_addon.kernel.retry import Patience
from hivemind_addon.kernel.values.command import Cancel
from hivemind_addon.kernel.values.ticket import PoolKey
from tests.kernel.samples import CANCELLED, POOL, Bench, requests_reading, ticket


def of(client="cli", agent="a", *, assumed_s=110.0):
    return replace(ticket("t", session=agent), client=client, deadline_at=assumed_s, shed_at=0.9 * assumed_s)


def after(*seen, assumed_s=110.0):
    """What is seen: `left 60`, `stayed 80`, `shed`, `back`."""
    patience = Patience()
    for word, _, waited_s in (what.partition(" ") for what in seen):
        made = patience.believed(of(assumed_s=assumed_s))
        match word:
            case "left" | "stayed":
                getattr(patience, word)(made, float(waited_s))
            case _:
                patience.shed(replace(made, deadline_at=assumed_s), came_back=word == "back")
    return patience


@pytest.mark.parametrize(
    ("seen", "waits_s"),
    [
        ([], 110),
        (["left 60.4"], 60.4),
        (["left 5.05"], 5.05),
        (["left 43"], 110),
        (["left 43", "left 43.5", "left 42.8"], 42.8),
        (["left 45", "left 77", "left 90"], 110),
        (["left 0.5"] * 3, 110),
        (["left 60"] * 4 + ["stayed 80"], 60),
        (["left 60"] * 4 + ["stayed 80"] * 2, 110),
        (["left 60", "stayed 50", "stayed 50"], 60),
        (["left 60"] * 100 + ["stayed 80"] * 80, 110),
        (["stayed 140"], 300),
        (["stayed 140", "left 120"], 120),
        (["stayed 140", "left 120", "stayed 140"], 300),
        (["stayed 140"] + ["left 110"] * 4, 110),
        (["shed"] * 2, 110),
        (["shed"] * 3, 300),
        (["shed"] * 3 + ["back"], 110),
        (["shed", "shed", "shed", "left 111"], 110),
    ],
    ids=[
        "nothing",
        "one left, at a usual time",
        "httpx's",
        "one left, at any other",
        "several left alike",
        "people left",
        "at once",
        "few stayed longer",
        "two kinds behind one name",
        "who is served sooner says nothing",
        "what was long ago is forgotten",
        "one stayed longer than is assumed",
        "and another left later",
        "and another one did not",
        "the assumption comes back",
        "two were shed and did not come back",
        "three were, so that the next is held",
        "one of them came back",
        "the next one left",
    ],
)
def test_an_assumed_time_is_corrected_both_ways(seen, waits_s):
    made = after(*seen).believed(of())
    assert made.deadline_at == pytest.approx(waits_s)
    assert made.shed_at == pytest.approx(waits_s * (0.9 if waits_s == 110 else 0.95))


@given(
    some.lists(some.tuples(some.sampled_from(["left", "stayed", "shed", "back"]), some.floats(0, 4000))),
    some.sampled_from([1.0, 5.0, 30.0, 600.0, 1800.0]),
)
def test_whoever_waits_is_shed_some_day_and_not_at_once(seen, assumed_s):
    made = after(*(f"{word} {waited_s}" for word, waited_s in seen), assumed_s=assumed_s).believed(
        of(assumed_s=assumed_s)
    )
    assert min(assumed_s, 1.9) <= made.deadline_at <= max(300, assumed_s)
    assert 0 < made.shed_at < made.deadline_at


def test_nobody_is_shed_because_of_another_agent_or_of_another_product():
    patience = after("left 60", "left 60")
    waits_s = [patience.believed(one).deadline_at for one in (of(), of(agent="b"), of("other"), of(""))]
    assert waits_s == [60, 110, 110, 110]


def test_who_announced_it_teaches_nothing_and_memory_is_bounded():
    patience = Patience()
    for number in range(1000):
        patience.left(of(""), 120)
        patience.left(of(f"cli-{number}"), 120)
        patience.left(of(), 30 * 1.1 ** (number % 60))
    assert "" not in [kind.partition(" ")[0] for kind in patience.times]
    assert len(patience.times) <= 201
    assert max(map(len, patience.times.values())) <= 8


def test_it_survives_a_restart():
    learned = after("left 90", "left 91", "stayed 300").times
    saved = Saved(pools=(), accounts=(), same_account={}, patience=learned)
    assert read_saved(json.loads(json.dumps(saved.to_json()))).patience == learned


OTHER_POOL = PoolKey(host="api.other", account="key-1", model_group="m")


class Silent(Bench):
    """Clients of a kind that does not say how long it waits."""

    def come(self, name: str, client: str, pool: PoolKey = POOL) -> None:
        made = replace(ticket(name, session=name, at=self.now, pool=pool), client=client, agent=client)
        self.scheduler.submit(made, self.settings, self.now)
        self.poll()

    def leave(self, name: str, *, by_person: bool = False, saw_bytes: bool = False) -> None:
        """One of the same kind leaves that was sent to another provider."""
        if by_person:
            self.scheduler.command(Cancel(name), self.now)
            self.scheduler.drain_cancelled()
        self.settle(name, CANCELLED, client_saw_bytes=saw_bytes)


@pytest.mark.parametrize(
    ("ending", "is_served"),
    [({}, True), ({"by_person": True}, False), ({"saw_bytes": True}, False)],
    ids=["it left", "a person ended it", "it had begun to read"],
)
def test_one_whose_kind_left_goes_before_others_while_it_is_there(ending, is_served):
    """One request goes every ten seconds, and twenty came before it."""
    bench = Silent(slots=40)
    bench.come("before", "cli", OTHER_POOL)
    bench.now = 120.0
    bench.leave("before", **ending)
    bench.submit("spends")
    bench.observe("spends", requests_reading(limit=6, remaining=0, reset_in_s=60))
    bench.submit(*(f"t{number}" for number in range(20)))
    bench.come("hasty", "cli")
    served = [name for _ in range(12) for name in bench.advance(10)]
    assert len(served) == pytest.approx(12, abs=1)
    assert ("hasty" in served) == is_served
    assert "hasty" not in served[:8]


def test_who_leaves_is_shed_before_and_who_stays_after_all_is_held():
    """Nothing goes any more; one was sent to another provider before."""
    bench = Silent()
    bench.come("first", "cli")
    bench.now = 60.0
    bench.leave("first")
    bench.come("slow", "cli", OTHER_POOL)
    bench.submit("spends")
    bench.observe("spends", requests_reading(limit=6, remaining=0, reset_in_s=9000))
    bench.come("hasty", "cli")
    bench.come("other", "another")
    bench.advance(56)
    assert not bench.shed
    bench.advance(2)
    assert [one.ticket.id for one in bench.shed] == ["hasty"]
    bench.advance(5)
    bench.settle("slow")
    bench.come("stays", "cli")
    bench.advance(500)
    assert [one.ticket.id for one in bench.shed] == ["hasty"]
    bench.advance(600)
    assert {one.ticket.id for one in bench.shed} == {"hasty", "stays", "other"}
