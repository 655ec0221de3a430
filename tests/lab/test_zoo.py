"""The zoo: its limiters, the gateway in front of them, the runs before them, and its goals."""

import io
import math
import random
from dataclasses import replace

import pytest
from rich.console import Console

from hivemind_addon.kernel.values.ticket import Demand, Dimension, Reading
from lab import zoo
from lab.closed_loop import ClosedCrowd, Oracle, Order, Run, Scheduled, compare
from lab.gateway import (
    BAD_GATEWAY,
    OVERLOADED,
    RATE_LIMITED,
    RESET,
    Chance,
    Gateway,
    GatewayNeighbour,
    Header,
    RetryAfter,
    Rule,
    capped,
    several,
    telling,
)
from lab.limiters import (
    Ban,
    Bucket,
    Cap,
    HonestHeader,
    Outage,
    Ramp,
    SlidingCounter,
    SlidingLog,
    Window,
)
from lab.zoo import Measure, section, table
from lab.zoo_entries import ZOO, ZooEntry, entries
from tests.cases import each

GOOD = Run(
    time_s=100, agents=20, lost=0, delivered=400, longest_s=9, attempts=400, refused=0, struck=0, over_cap=0, used=None
)
ENTRY = ZooEntry("thing", "a thing", lambda _: Gateway())


def of(**mine):
    oracle = replace(GOOD, used=1.0) if "used" in mine else GOOD
    return Measure(ENTRY, (replace(GOOD, **mine),), (oracle,))


@each(
    ("mine", "missed"),
    [
        ({"attempts": 412, "refused": 12, "time_s": 115, "used": 0.91}, []),
        ({"lost": 1}, ["thing: 1 of 20 agents lost"]),
        ({"attempts": 420, "refused": 20}, ["thing: 4.8% refused, at most 3.0%"]),
        ({"time_s": 116}, ["thing: time ÷ oracle's 1.16, at most 1.15"]),
        ({"over_cap": 9, "used": 0.95}, ["thing: 2.2% over the cap, at most 2%"]),
        ({"used": 0.9}, ["thing: 90% of the cap used, more than 90% wanted"]),
    ],
)
def test_a_goal_that_is_not_reached_is_told(mine, missed):
    assert of(**mine).misses() == missed


def test_chance_is_counted_beside_the_oracles():
    unlucky = replace(GOOD, attempts=500, struck=100)
    assert Measure(ENTRY, (replace(unlucky, attempts=505, refused=5),), (unlucky,)).misses() == []
    worse = replace(unlucky, attempts=520, refused=20)
    assert Measure(ENTRY, (worse,), (unlucky,)).misses() == ["thing: 23.1% refused, at most 21.0%"]


def test_what_is_beyond_is_not_missed():
    slow = of(time_s=300)
    assert zoo.missed([slow]) == ["thing: time ÷ oracle's 3.00, at most 1.15"]
    assert zoo.missed([replace(slow, entry=replace(ENTRY, beyond="nobody knows"))]) == []


def test_some_of_the_zoo_in_short_deliver_all_of_their_turns():
    told = []
    short = [
        replace(entry, crowd=replace(entry.crowd, turns=4))
        for entry in entries(["window-10s", "gcra", "cap-8", "random-529-6%", "told-stale", "tokens-told", "ban"])
    ]
    for one in zoo.measure(short, seeds=2, done=told.append):
        for run in (*one.mine, *one.oracle):
            assert (run.delivered, run.lost) == (4 * run.agents, 0), one.entry.name
            assert run.attempts == run.delivered + run.refused + run.struck, one.entry.name
        assert not any(run.refused for run in one.oracle), one.entry.name
        assert min(one.stretches) >= 0.99, one.entry.name
    assert told == [f"zoo:{entry.name}" for entry in short]


def test_a_cap_and_chance_are_told_apart():
    entry = ZooEntry(
        "both",
        "",
        lambda _: Gateway([Rule(Cap(2), OVERLOADED)], chances=[Chance(0.2, OVERLOADED)]),
        ClosedCrowd(agents=5, turns=6),
    )
    (one,) = zoo.measure([entry], seeds=1)
    (run,) = one.mine
    assert run.struck == one.oracle[0].struck > 0
    assert run.over_cap == run.refused > 0
    assert one.over_cap == run.refused / run.attempts
    assert one.refused == (run.refused + run.struck) / run.attempts
    assert 0 < one.used <= 1


# Zoo entries ----------------------------------------------------------------------------------------------------------


def test_there_are_more_than_fifty_of_one_name_each():
    assert len(ZOO) == len({entry.name for entry in ZOO}) >= 50


def test_entries_are_found_by_parts_of_their_names():
    assert [entry.name for entry in entries(["hour", "cap-2"])] == [
        entry.name for entry in ZOO if "hour" in entry.name or "cap-2" in entry.name
    ]
    assert entries() == list(ZOO)


def test_each_gateway_is_new_and_lets_the_largest_request_pass():
    for entry in ZOO:
        first, second = entry.gateway(random.Random(0)), entry.gateway(random.Random(0))
        tokens = max(entry.crowd.tokens)
        demand = Demand(input_tokens=tokens, total_tokens=tokens)
        assert first.wait_s(0, demand) == 0, entry.name
        first.take(0, demand)
        assert not {id(rule.limiter) for rule in first.rules} & {id(rule.limiter) for rule in second.rules}, entry.name


def test_who_may_ask_the_limiters_is_refused_by_chance_alone_and_loses_nobody():
    for entry in ZOO:
        gateway = entry.gateway(random.Random(0))
        run = Oracle(gateway, entry.crowd, seed="0", order=Order.OLDEST).run()
        assert (run.refused, run.lost, run.struck > 0) == (0, 0, bool(gateway.chances)), entry.name
        assert run.delivered == entry.crowd.agents * entry.crowd.turns, entry.name
        assert run.longest_s < 0.95 * entry.crowd.patience_s, entry.name
        foreknowing = Oracle(entry.gateway(random.Random(0)), entry.crowd, seed="0", order=Order.LEFT).run()
        assert run.time_s <= 1.1 * foreknowing.time_s, f"{entry.name}: its goal hangs on knowing latencies beforehand"


# Zoo view -------------------------------------------------------------------------------------------------------------


RUN = Run(
    time_s=100, agents=20, lost=0, delivered=400, longest_s=9, attempts=400, refused=0, struck=0, over_cap=0, used=None
)
FREE = Measure(ZooEntry("free", "no limit at all", lambda _: Gateway()), (RUN,), (RUN,))
SLOW = replace(FREE, entry=replace(FREE.entry, name="slow"), mine=(replace(RUN, time_s=200, lost=2),))
CAPPED = Measure(
    replace(FREE.entry, name="capped", beyond="it cannot be known"),
    (replace(RUN, attempts=500, refused=100, over_cap=100, used=0.8),),
    (replace(RUN, used=1.0),),
)


def test_each_entry_has_a_row_that_says_whether_its_goals_are_reached():
    console = Console(width=80, file=io.StringIO())
    console.print(table([FREE, SLOW, CAPPED]))
    _, free, slow, capped, *_ = console.file.getvalue().splitlines()
    assert free.split() == ["free", "0", "0.0%", "0.0%", "1.00-1.00", "100", "✓"]
    assert slow.split() == ["slow", "2", "0.0%", "0.0%", "2.00-2.00", "200", "✗"]
    assert capped.split() == ["capped", "0", "20.0%", "0.0%", "1.00-1.00", "100", "80%", "20.0%", "beyond"]


def test_the_longest_name_fits_80_columns():
    longest = max((entry.name for entry in ZOO), key=len)
    worst = replace(RUN, time_s=9_800, lost=100, attempts=500, refused=100, over_cap=100, used=1.0)
    wide = replace(CAPPED, entry=replace(CAPPED.entry, name=longest), mine=(worst,))
    assert Console(width=200).measure(table([wide])).maximum <= 80


def test_the_section_says_what_each_entry_is_and_why_one_is_beyond():
    text = section([FREE, SLOW, CAPPED])
    assert "1 seeds" in text
    assert "| free | no limit at all | 0 of 20 | 0.0%, 0.0% | 1.00, 1.00 |  | met |" in text
    assert "| slow | no limit at all | 2 of 20 | 0.0%, 0.0% | 2.00, 2.00 |  | **missed** |" in text
    assert "| capped | no limit at all | 0 of 20 | 20.0%, 0.0% | 1.00, 1.00 | 80%, 20.0% | beyond |" in text
    assert text.endswith("\n- `capped` is beyond: it cannot be known\n")


# Closed loop ----------------------------------------------------------------------------------------------------------


FEW = ClosedCrowd(agents=4, turns=5)
WAY_S = FEW.way_s
ONE = ClosedCrowd(agents=1, turns=3, service_s=(2, 2), think_s=(1, 1))
GATEWAYS = {
    "nothing": Gateway,
    "a window": lambda: Gateway([Rule(Window(6, 10))]),
    "a bucket": lambda: Gateway([Rule(Bucket(60, 60, size=1))]),
    "a cap that moves": lambda: capped_entry(2, 1),
    "chance": lambda: Gateway(chances=[Chance(0.3, OVERLOADED), Chance(0.1, RESET, late=True)]),
    "a neighbour": lambda: Gateway([Rule(Window(6, 10))], neighbour=GatewayNeighbour(0.2)),
}


def capped_entry(slots: int, later: int) -> Gateway:
    cap = Cap(slots)
    return Gateway([Rule(cap, OVERLOADED)], changes=[(5.0, cap, later)])


@each("name", GATEWAYS)
def test_every_turn_is_delivered_once(name):
    for run in (
        Scheduled(GATEWAYS[name](), FEW, seed="1").run(),
        *(Oracle(GATEWAYS[name](), FEW, seed="1", order=order).run() for order in Order),
    ):
        assert (run.delivered, run.lost, run.agents) == (20, 0, 4)
        assert run.attempts == run.delivered + run.refused + run.struck


@each("name", GATEWAYS)
def test_the_oracle_is_refused_by_chance_alone(name):
    run = Oracle(GATEWAYS[name](), FEW, seed="2", order=Order.LEFT).run()
    assert run.refused == 0
    assert (run.struck > 0) == (name == "chance")


def test_a_free_agent_takes_its_turns_and_the_way():
    for run in compare(lambda _: Gateway(), ONE, seed=0):
        assert run.time_s == pytest.approx(3 * (1 + 2 + 2 * WAY_S))


def test_the_oracle_sends_the_instant_at_which_it_passes():
    wide = ClosedCrowd(agents=5, turns=1, service_s=(2, 2), think_s=(1, 1))
    spaced = Oracle(Gateway([Rule(Bucket(60, 60, size=1))]), wide, seed="0", order=Order.OLDEST).run()
    assert spaced.time_s == pytest.approx(1 + WAY_S + 4 + 2 + WAY_S)
    halved = Oracle(Gateway([Rule(Cap(2))]), wide, seed="0", order=Order.OLDEST).run()
    assert halved.time_s == pytest.approx(1 + WAY_S + 3 * 2 + WAY_S)
    # Nothing runs on the way there, and one alone while two answers are on their way back.
    assert halved.used == pytest.approx((4 + WAY_S / 2) / (4 + 2 * WAY_S))


def test_both_meet_the_same_strokes():
    mine, oracle = compare(lambda _: Gateway(chances=[Chance(0.3, OVERLOADED)]), FEW, seed=3)
    assert mine.struck == oracle.struck > 0


def test_the_neighbours_calls_pass_first():
    alone = Oracle(Gateway([Rule(Window(6, 10))]), FEW, seed="1", order=Order.LEFT).run()
    beside = Oracle(GATEWAYS["a neighbour"](), FEW, seed="1", order=Order.LEFT).run()
    assert alone.time_s > 30  # 20 of 6 in 10 s
    assert beside.time_s > 40  # 20 of 4 in 10 s


def test_agents_may_begin_one_after_the_other():
    late = ClosedCrowd(agents=9, turns=1, service_s=(2, 2), think_s=(0, 0), starts_s=60)
    for run in compare(lambda _: Gateway(), late, seed=0):
        assert 30 < run.time_s < 62 + 1
        assert run.delivered == 9


def test_who_is_out_of_patience_is_lost():
    hasty = ClosedCrowd(agents=3, turns=1, patience_s=30)
    run = Scheduled(Gateway([Rule(Window(2, 100))]), hasty, seed="0").run()
    assert (run.delivered, run.lost) == (2, 1)


def test_who_still_runs_when_the_time_is_over_is_lost():
    run = Scheduled(Gateway(), ONE, seed="0").run(until=4)
    assert (run.delivered, run.lost) == (1, 1)


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    first, again, other = (Scheduled(capped_entry(2, 1), FEW, seed=seed).run() for seed in ("1", "1", "2"))
    assert first == again != other


def test_some_answers_may_take_long_and_some_ways():
    plain, slow = (ClosedCrowd(agents=9, turns=9, long_share=share) for share in (0.0, 0.5))
    runs = [Oracle(Gateway(), crowd, seed="0", order=Order.LEFT).run() for crowd in (plain, slow)]
    assert runs[0].longest_s < 3.1
    assert 10 < runs[1].longest_s < 30.1
    jittery, oracle = compare(lambda _: Gateway(), ClosedCrowd(agents=1, turns=9, jitter_s=0.5), seed=0)
    assert 0 < jittery.time_s - oracle.time_s < 9 * 0.5


# Gateway --------------------------------------------------------------------------------------------------------------


ONE_GATEWAY = Demand(input_tokens=500)


@each(
    ("says", "word"),
    [
        (RetryAfter.EXACT, 2.5),
        (RetryAfter.ROUNDED_UP, 3),
        (RetryAfter.ROUNDED_DOWN, 2),
        (RetryAfter.MISSING, None),
        (RetryAfter.SHORT, 0.75),
        (RetryAfter.LONG, 25),
        (RetryAfter.ALWAYS_60, 60),
    ],
)
def test_what_a_refusal_says_of_when_to_come_back(says, word):
    assert says.of(2.5) == word
    assert says.of(math.inf) == (60 if says is RetryAfter.ALWAYS_60 else None)


def test_the_first_limiter_that_does_not_fit_refuses():
    gateway = Gateway([Rule(Cap(1), OVERLOADED), Rule(Window(1, 10), retry_after=RetryAfter.ROUNDED_UP)])
    assert gateway.refusal(0, ONE_GATEWAY) is None
    gateway.take(0, ONE_GATEWAY)
    assert gateway.refusal(0, ONE_GATEWAY) == OVERLOADED
    assert gateway.wait_s(0, ONE_GATEWAY) == math.inf
    gateway.end(3.5)
    refusal = gateway.refusal(3.5, ONE_GATEWAY)
    assert (refusal.reason, refusal.retry_after_s) == (RATE_LIMITED.reason, 7)
    assert gateway.wait_s(3.5, ONE_GATEWAY) == 6.5


def test_limits_count_requests_or_tokens():
    gateway = Gateway([Rule(Bucket(600, 60, counts=Dimension.INPUT_TOKENS))])
    gateway.take(0, ONE_GATEWAY)
    assert gateway.wait_s(0, ONE_GATEWAY) == 40


def test_headers_tell_of_the_limiter_that_they_are_told_of():
    enforced, stated = Window(10, 10), Window(60, 60)
    gateway = Gateway([Rule(enforced)], headers=[Header(stated), Header(enforced, window_s=60, on_refusals=False)])
    gateway.take(0, ONE_GATEWAY)
    first = Reading("meter-0", Dimension.REQUESTS, window_s=60, limit=60, remaining=59, reset_in_s=58)
    second = Reading("meter-1", Dimension.REQUESTS, window_s=60, limit=10, remaining=9, reset_in_s=8)
    assert gateway.readings(2, refused=False) == (first, second)
    assert gateway.readings(2, refused=True) == (first,)


def test_stale_headers_tell_what_was_true():
    window = Window(10, 60)
    gateway = Gateway([Rule(window)], headers=[Header(window, age_s=3)])
    told = []
    for at in (0, 2, 4):
        gateway.take(at, ONE_GATEWAY)
        (reading,) = gateway.readings(at, refused=False)
        told.append((reading.remaining, reading.reset_in_s))
    assert told == [(9, 60), (9, 58), (9, 56)]
    assert gateway.readings(6, refused=False)[0].remaining == 8


def test_chance_strikes_its_share():
    gateway = Gateway(chances=[Chance(0.1, OVERLOADED), Chance(0.2, BAD_GATEWAY, late=True)])
    rng = random.Random(1)
    struck = [gateway.strike(rng) for _ in range(10_000)]
    assert struck.count(gateway.chances[0]) == pytest.approx(1_000, rel=0.1)
    assert struck.count(gateway.chances[1]) == pytest.approx(2_000, rel=0.1)
    assert struck.count(None) == pytest.approx(7_000, rel=0.05)


def test_headers_that_lie_of_a_window_have_its_phase():
    def window(limit):
        return lambda rng: Window(limit, 60, begins_at=-rng.uniform(0, 60))

    gateway = telling(window(60), says=window(90))(random.Random(7))
    gateway.take(0, ONE_GATEWAY)
    (reading,) = gateway.readings(0, refused=False)
    assert (reading.limit, reading.remaining) == (90, 89)
    for _ in range(59):
        gateway.take(0, ONE_GATEWAY)
    assert gateway.refusal(0, ONE_GATEWAY).retry_after_s == math.ceil(reading.reset_in_s)


def test_of_several_limits_the_first_may_be_told():
    gateway = several(lambda _: Rule(Window(9, 60)), lambda _: Rule(Cap(2)), told=1)(random.Random(0))
    assert [reading.limit for reading in gateway.readings(0, refused=False)] == [9]
    assert gateway.cap.slots == 2


def test_a_limit_moves_at_its_instants():
    (at, limiter, limit), *more = capped(4, moves=[(60, 12), (90, 2)])(random.Random(0)).changes
    assert (at, limiter.slots, limit, len(more)) == (60, 4, 12, 1)


# Limiters -------------------------------------------------------------------------------------------------------------


REQUEST = 1


def take(limiter, *instants, units=REQUEST):
    for at in instants:
        assert limiter.wait_s(at, units) == 0
        limiter.take(at, units)


def test_a_window_by_the_clock_begins_anew_at_its_own_instants():
    window = Window(2, 10, begins_at=-4)
    take(window, 1, 5.5)
    assert window.wait_s(5.6, REQUEST) == pytest.approx(0.4)
    assert window.standing(5.6) == HonestHeader(2, 0, pytest.approx(0.4))
    take(window, 6, 6.1)
    assert window.wait_s(6.1, REQUEST) == pytest.approx(9.9)
    assert window.wait_s(40, REQUEST) == 0


def test_a_window_may_begin_with_the_first_call():
    window = Window(2, 10, begins_at=None)
    assert window.standing(3) == HonestHeader(2, 2, 10)
    take(window, 3, 9)
    assert window.wait_s(9, REQUEST) == 4
    take(window, 20)
    assert window.standing(21) == HonestHeader(2, 1, 9)


def test_a_window_counts_units():
    window = Window(100, 10)
    take(window, 0, units=70)
    assert window.wait_s(1, 40) == 9
    assert window.wait_s(1, 30) == 0


def test_a_limit_that_falls_below_what_is_used_refuses_until_the_next_window():
    window = Window(5, 10)
    take(window, 0, 1, 2)
    window.resize(2, 3)
    assert window.wait_s(3, REQUEST) == 7
    assert window.standing(3).remaining == 0


def test_a_log_forgets_each_one_in_its_own_time():
    log = SlidingLog(3, 10)
    take(log, 0, 1, 5)
    assert log.wait_s(6, REQUEST) == 4
    assert log.wait_s(6, 2) == 5
    assert log.wait_s(6, 4) == math.inf
    take(log, 10)
    assert log.standing(10) == HonestHeader(3, 0, 1)


def test_a_log_that_counts_refusals_keeps_shut_whoever_hammers():
    log = SlidingLog(1, 10, counts_refusals=True)
    take(log, 0)
    log.refuse(9, REQUEST)
    assert log.wait_s(10, REQUEST) == 9
    forgiving = SlidingLog(1, 10)
    take(forgiving, 0)
    forgiving.refuse(9, REQUEST)
    assert forgiving.wait_s(10, REQUEST) == 0


def test_a_counter_weighs_the_last_period_by_what_still_overlaps():
    counter = SlidingCounter(10, 10)
    for _ in range(8):
        take(counter, 1)
    take(counter, 12.5, 12.5, 12.5, 12.5)  # 8 · 0.75 = 6, and 4
    assert counter.standing(12.5) == HonestHeader(10, 0, 7.5)
    assert counter.wait_s(12.5, REQUEST) == pytest.approx(1.25)  # 8 · 0.625 = 5
    take(counter, 13.75)
    assert counter.wait_s(13.75, 6) == pytest.approx(6.25 + 2)  # of the next period, when 5 · 0.8 = 4
    assert counter.wait_s(100, 10) == 0


def test_a_bucket_is_refilled_all_the_time_and_never_runs_over():
    bucket = Bucket(60, 60)
    assert bucket.wait_s(100, 60) == 0
    bucket.take(100, 60)
    assert bucket.wait_s(100, REQUEST) == 1
    assert bucket.standing(110) == HonestHeader(60, 10, 50)
    assert bucket.wait_s(110, 61) == math.inf


def test_the_size_of_a_bucket_is_what_goes_at_once():
    spacing = Bucket(120, 60, size=1)
    take(spacing, 7)
    assert spacing.wait_s(7.1, REQUEST) == pytest.approx(0.4)
    assert spacing.wait_s(90, REQUEST) == 0
    spacing.take(90, REQUEST)
    assert spacing.wait_s(90, REQUEST) == pytest.approx(0.5)


def test_a_bucket_that_counts_refusals_is_emptied_by_them_down_to_a_bound():
    bucket = Bucket(60, 60, size=2, counts_refusals=True)
    take(bucket, 0, 0)
    bucket.refuse(0, REQUEST)
    assert bucket.wait_s(0, REQUEST) == 2
    for _ in range(9):
        bucket.refuse(0, REQUEST)
    assert bucket.wait_s(0, REQUEST) == 3


def test_a_bucket_whose_limit_changes_keeps_what_is_in_it():
    bucket = Bucket(60, 60)
    bucket.take(0, 50)
    bucket.resize(120, 0)
    assert bucket.standing(0) == HonestHeader(120, 10, 55)
    bucket.resize(6, 0)
    assert bucket.standing(0).remaining == 6


def test_a_cap_counts_what_runs():
    cap = Cap(2)
    take(cap, 0, 1)
    assert cap.wait_s(2, REQUEST) == math.inf
    cap.end(3)
    assert (cap.wait_s(3, REQUEST), cap.taken(3)) == (0, 1)
    cap.resize(1, 4)
    assert cap.wait_s(4, REQUEST) == math.inf


def test_a_slot_may_stay_taken_after_the_end():
    cap = Cap(2, linger_s=5)
    take(cap, 0, 0)
    cap.end(1)
    cap.end(2)
    assert (cap.wait_s(3, REQUEST), cap.taken(3)) == (3, 2)
    assert (cap.wait_s(6, REQUEST), cap.taken(6)) == (0, 1)
    cap.resize(1, 6)
    assert cap.wait_s(6, REQUEST) == 1


def test_a_ban_follows_refusals_that_come_too_close():
    ban = Ban(3, 10, lasts_s=45)
    for at in (0, 6, 12):
        ban.refuse(at, REQUEST)
        assert ban.wait_s(at, REQUEST) == 0
    ban.refuse(13, REQUEST)
    assert ban.wait_s(20, REQUEST) == 38
    ban.refuse(50, REQUEST)
    assert ban.wait_s(58, REQUEST) == 0


def test_an_outage_has_its_time():
    outage = Outage(20, 30)
    assert [outage.wait_s(at, REQUEST) for at in (19, 20, 45, 50)] == [0, 30, 5, 0]


def test_a_ramp_gives_as_much_more_as_the_time_before_proves():
    ramp = Ramp(2, 10, growth=1.5)
    take(ramp, 0, 1)
    assert ramp.wait_s(4, REQUEST) == 6
    take(ramp, 10)
    assert ramp.wait_s(10.5, REQUEST) == 0.5
    take(ramp, 11, 11)  # 1.5 · 2, of which one is taken
    assert ramp.wait_s(11, REQUEST) == 9
    assert ramp.standing(20) == HonestHeader(3, 1, 10)
    take(ramp, 21, 21, 21, 21)  # 1.5 · 3
    assert ramp.wait_s(21, REQUEST) == 10
    assert ramp.wait_s(50, 2) == 0
