from dataclasses import replace

import msgspec

from hivemind_addon.api.ticket import Dimension, OutcomeKind
from hivemind_addon.lab.replay.limits import given_limit
from hivemind_addon.lab.replay.whatif import what_if
from hivemind_addon.lab.sim.policy import COMPARED, Policy
from hivemind_addon.proxy.capture.model import LimitSeen
from tests.cases import over
from tests.cpu_time import least_cpu_s
from tests.replay.nights import POOL, attempt, call, capture, fleet


def runs(replay, policy):
    return next(nights.runs for nights in replay.policies if nights.policy == policy)


def test_a_night_of_fifty_agents_with_twenty_turns_is_replayed_within_seconds():
    night = fleet(50, 20, requests_per_min=200)
    assert least_cpu_s(lambda: what_if(night, policies=[Policy.HIVEMIND]), tries=1) < 10
    replay = what_if(night, policies=[Policy.HIVEMIND])
    (run,) = runs(replay, "hivemind")
    assert (run.agents, run.lost, run.turns_done) == (50, 0, 1000)


def test_the_same_capture_and_arguments_give_the_same_bytes():
    first, second = (
        msgspec.json.encode(what_if(fleet(8, 5), seeds=2, copies=3, given=[given_limit("requests=30/min")]))
        for _ in range(2)
    )
    assert first == second


def test_a_strict_limit_kills_agents_on_their_own_and_none_behind_the_scheduler():
    replay = what_if(fleet(12, 6), given=[given_limit("requests=20/min")])
    (direct,), (scheduled,) = runs(replay, "direct"), runs(replay, "hivemind")
    assert direct.lost > 6
    assert direct.refusals > 0
    assert scheduled.lost == 0
    assert scheduled.turns_done == 72
    assert scheduled.makespan_s >= scheduled.bound_s > replay.recorded.makespan_s
    assert [nights.policy for nights in replay.policies] == [policy.name for policy in COMPARED]


def test_more_agents_want_more_of_everything():
    once, thrice = (what_if(fleet(4, 4), policies=[Policy.HIVEMIND], copies=copies) for copies in (1, 3))
    assert (thrice.agents, thrice.turns) == (12, 48)
    assert runs(thrice, "hivemind")[0].spent.tokens > 2 * runs(once, "hivemind")[0].spent.tokens
    assert once.recorded == thrice.recorded


def test_what_was_recorded_is_counted_as_it_was():
    refused = attempt(0, took_s=0.5, kind=OutcomeKind.THROTTLED, status=429)
    overloaded = attempt(1, took_s=0.5, kind=OutcomeKind.OVERLOADED, status=529)
    calls = (
        call("1", 0, attempts=(refused, overloaded, attempt(2))),
        call("b", 1, agent="b", attempts=(attempt(1, kind=OutcomeKind.FAILED, status=500),)),
    )
    recorded = what_if(capture(*calls), policies=[Policy.HIVEMIND]).recorded
    assert (recorded.agents, recorded.lost, recorded.turns, recorded.turns_done) == (2, 1, 2, 1)
    assert (recorded.attempts, recorded.refusals, recorded.overloads, recorded.failures) == (4, 1, 1, 1)
    assert recorded.makespan_s == 4
    assert recorded.delays.p50_s == 2.0
    assert recorded.spent.tokens == 1100
    assert recorded.spent.micro_usd == 4500


def test_what_a_reader_has_to_know_is_said():
    dead = call("2", 9, attempts=(attempt(9, kind=OutcomeKind.OVERLOADED, status=529),))
    left = call("3", 20, attempts=(), end="cancelled")
    night = replace(capture(call("1", 0), dead, left, limits=()), damage=("the file ends at byte 99",))
    assert list(what_if(night, policies=[Policy.HIVEMIND]).notes) == [
        "damaged: the file ends at byte 99; what precedes it is replayed",
        "1 turn never got an answer: taken to need what others of their pool did",
        "1 call left out: the client went before anything was sent",
        "no limit is known of api.anthropic.com/key-1/claude-sonnet: nothing is refused there; give one with --limit",
    ]
    (pool,) = what_if(fleet(1, 1), given=[given_limit("concurrency=3")], policies=[Policy.FIFO]).pools
    assert pool.limits == ("requests=60/min:bucket", "concurrency=3")
    pace = LimitSeen(0, POOL, "pace", "3 requests per second", 3, 1.0, Dimension.REQUESTS)
    (pool,) = what_if(capture(call("1", 0), limits=(pace,)), policies=[Policy.FIFO]).pools
    assert pool.limits == ("requests=3/s:bucket (no header tells)",)


@over("policy", COMPARED)
def test_each_seed_is_a_run(policy):
    replay = what_if(fleet(3, 3), policies=[policy], seeds=3, copies=2)
    assert len(runs(replay, policy.name)) == 3
    assert len({run.makespan_s for run in runs(replay, policy.name)}) > 1
