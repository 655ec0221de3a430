"""Three agents and three things: what deadlocks, and that the leases that do not are the house's own."""

import random

import pytest

from hivemind_addon.plugins.fleets.leases.sqlite_store import SqliteLeases
from lab.papers.philosophers import AGENTS, ROUNDS, Dinner, LockWay, locked, locks, talks


def share(runs, what):
    return sum(getattr(run, what) for run in runs) / len(runs)


def test_copies_of_one_agent_that_say_nothing_deadlock_in_the_first_round_and_stay():
    assert set(talks(5, alike=1, kept=0)) == {Dinner(deadlocked=True, is_stuck=True, used=0)}


def test_talk_helps_as_far_as_words_are_kept():
    rates = [share(talks(100, alike=1, kept=kept), "deadlocked") for kept in (0, 0.42, 0.76, 1)]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-1]) == (1, 0)
    assert 0.2 < rates[1] < 1


def test_who_keeps_words_now_and_then_gets_out_again():
    runs = talks(100, alike=1, kept=0.42)
    assert share(runs, "is_stuck") == 0
    assert share(runs, "used") > ROUNDS / 2


@pytest.mark.parametrize("alike", [0.5, 1])
def test_locks_one_by_one_deadlock_for_good_and_neither_one_order_nor_all_or_none_does(alike):
    single, ordered, together = (locks(4, way, alike=alike) for way in LockWay)
    assert share(single, "deadlocked") == share(single, "is_stuck") > 0.5
    for runs in (ordered, together):
        assert share(runs, "deadlocked") == 0
    assert share(together, "used") > share(ordered, "used") > ROUNDS / 2


def test_all_or_none_serves_everybody_in_turn(tmp_path):
    holders = []

    class Watched(SqliteLeases):
        def acquire(self, request, now, *, waiter=""):
            answer = super().acquire(request, now, waiter=waiter)
            holders.append((request.holder.agent, len(request.names), hasattr(answer, "grants")))
            return answer

    with Watched(tmp_path / "leases.db") as store:
        dinner = locked(random.Random(1), store, 0.0, LockWay.TOGETHER, alike=0.5)
    served = [agent for agent, _, granted in holders if granted]
    assert len(served) == dinner.used
    assert {size for _, size, _ in holders} == {2}
    counts = [served.count(f"agent {number}") for number in range(AGENTS)]
    assert max(counts) - min(counts) <= 1


def test_the_same_seeds_give_the_same_runs():
    assert locks(2, LockWay.ONE_BY_ONE, alike=0.5) == locks(2, LockWay.ONE_BY_ONE, alike=0.5)
