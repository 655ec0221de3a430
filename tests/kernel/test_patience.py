"""What is learned of how long clients wait that do not say it; and that the order goes by it, and nothing else."""

import json
import math

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.learned import Saved, read_saved
from hivemind_addon.kernel.retry import Patience
from hivemind_addon.kernel.values.command import Cancel
from hivemind_addon.kernel.values.ticket import PoolKey
from tests.kernel.samples import CANCELLED, POOL, Bench, requests_reading, ticket


def after(*waits_s: float, stayed: tuple[float, ...] = ()) -> Patience:
    patience = Patience()
    for waited_s in waits_s:
        patience.left("cli", waited_s)
    for waited_s in stayed:
        patience.stayed("cli", waited_s)
    return patience


@pytest.mark.parametrize(
    ("waits_s", "stayed", "leaves_s"),
    [
        ((), (), math.inf),
        ((120.4,), (), 114.4),
        ((90.0,), (), math.inf),
        ((90.0, 91.0, 90.5), (), 85.5),
        ((45.0, 77.0, 130.0), (), math.inf),
        ((5.0, 5.0, 5.0), (), math.inf),
        ((120.0,), (130.0,) * 4, 114.0),
        ((120.0,), (130.0,) * 5, math.inf),
        ((120.0,), (100.0,) * 50, 114.0),
        ((120.0,) * 100, (300.0,) * 80, math.inf),
    ],
    ids=[
        "nobody left",
        "one, at a usual time",
        "one, at any other",
        "several alike",
        "people",
        "at once",
        "few stayed longer",
        "many stayed longer",
        "who is served sooner says nothing",
        "what was long ago is forgotten",
    ],
)
def test_a_time_is_believed_as_far_as_clients_leave_then(waits_s, stayed, leaves_s):
    assert after(*waits_s, stayed=stayed).leaves_after_s("cli", 0) == pytest.approx(leaves_s, abs=0.5)


def test_each_kind_has_its_own_times_and_one_that_stays_past_the_first_has_the_next():
    patience = after(60, 300)
    assert patience.leaves_after_s("cli", 10) == 57
    assert patience.leaves_after_s("cli", 57) == 285
    assert patience.leaves_after_s("other", 10) == math.inf


def test_who_announced_it_teaches_nothing_and_memory_is_bounded():
    patience = Patience()
    for number in range(1000):
        patience.left("", 120)
        patience.left(f"cli-{number}", 120)
        patience.left("cli", 30 * 1.1 ** (number % 60))
    assert patience.leaves_after_s("", 0) == math.inf
    assert len(patience.times) <= 200
    assert len(patience.times.get("cli", [])) <= 8


def test_it_survives_a_restart():
    learned = after(90, 91, 300).times
    saved = Saved(pools=(), accounts=(), same_account={}, patience=learned)
    assert read_saved(json.loads(json.dumps(saved.to_json()))).patience == learned


OTHER_POOL = PoolKey(host="api.other", account="key-1", model_group="m")


class Silent(Bench):
    """Clients of a kind that does not say how long it waits."""

    def come(self, name: str, client: str, pool: PoolKey = POOL) -> None:
        made = replace(ticket(name, session=name, at=self.now, pool=pool), client=client)
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


def test_nobody_is_refused_because_of_it_and_who_stays_is_seen_to_stay():
    bench = Silent()
    bench.come("before", "cli", OTHER_POOL)
    bench.now = 120.0
    bench.leave("before")
    for number in range(5):
        bench.come(f"stays-{number}", "cli", OTHER_POOL)
    bench.advance(200)
    for number in range(5):
        bench.settle(f"stays-{number}")
    assert not bench.shed
    assert bench.scheduler.export()["patience"] == {"cli": [{"after_s": 120.0, "left": 1.0, "stayed": 5.0}]}
