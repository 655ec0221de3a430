"""The estimator before limiters worked out by hand. Many more: `hivemind lab prove --worlds zoo`."""

import math
import random
from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import pytest

from hivemind_addon.kernel.inference.hidden_limits import HiddenLimits
from hivemind_addon.kernel.inference.hypotheses import OF_OVERLOADS, Prior
from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.values.ticket import Demand, Dimension
from hivemind_addon.sim.limits import Limit, LimitKind, WindowKind

RATE = Prior(rate=0.6, concurrency=0.1)
CONCURRENCY = Prior(rate=0.0, concurrency=0.5)
WAY_S = 0.05
DEMAND = Demand(input_tokens=100, total_tokens=100)


type Refuses = Callable[[float, int], float | None]
"""Now, and how many are worked on → a retry-after (0: none is told); None: it passes."""


class Gateway:
    """Sends as soon as the estimator lets it; `refuses(now, in_flight)` answers a retry-after, or None: it passes."""

    def __init__(
        self,
        hidden: HiddenLimits,
        refuses: Refuses,
        *,
        service_s: float = 2.0,
        width: int = 12,
        uneven: float = 0.0,
    ) -> None:
        """`uneven`: so much of it answers take longer or shorter."""
        self.hidden, self.refuses, self.service_s, self.width = hidden, refuses, service_s, width
        self.uneven = uneven
        self.now = 0.0
        self.stamp = 0
        self.passed_at: list[float] = []
        self.refused_at: list[float] = []
        self._agenda: list[tuple[float, int, float | None]] = []
        self._flights: set[int] = set()
        self._working = 0
        """Those of the flights that were not refused."""

    def run(self, attempts: int, most_s: float = 1e5) -> "Gateway":
        while len(self.passed_at) < attempts:
            assert self.now < most_s, "it stands still"
            opens_at = self.hidden.opens_at(DEMAND, len(self._flights), self.now)
            if len(self._flights) >= self.width:
                opens_at = float("inf")
            first = min((event[0] for event in self._agenda), default=float("inf"))
            assert min(opens_at, first) < float("inf"), "nothing wakes it"
            if opens_at <= first:
                self.now = max(self.now, opens_at)
                self._send()
            else:
                self.now = first
                self._end()
        return self

    def _send(self) -> None:
        self.stamp += 1
        self.hidden.sent(self.stamp, DEMAND, len(self._flights) + 1, self.now)
        told = self.refuses(self.now, self._working)
        self._flights.add(self.stamp)
        if told is None:
            self._working += 1
            self.passed_at.append(self.now)
            took_s = self.service_s * (1 + self.uneven * math.sin(self.stamp))
            self._agenda.append((self.now + took_s, self.stamp, None))
        else:
            self.refused_at.append(self.now)
            self._agenda.append((self.now + WAY_S, self.stamp, told))

    def _end(self) -> None:
        event = min(self._agenda)
        self._agenda.remove(event)
        _, stamp, told = event
        self._flights.discard(stamp)
        if told is None:
            self._working -= 1
            self.hidden.passed(stamp, self.now)
        else:
            self.hidden.refused(stamp, told, self.now)
        self.hidden.ended(stamp, self.now)

    @property
    def refused_share(self) -> float:
        return len(self.refused_at) / self.stamp


def window(limit: int, window_s: float, *, tells: bool = True) -> Refuses:
    used: dict[int, int] = {}

    def refuses(now: float, in_flight: int) -> float | None:
        number = int(now // window_s)
        if used.get(number, 0) >= limit:
            return (number + 1) * window_s - now if tells else 0.0
        used[number] = used.get(number, 0) + 1
        return None

    return refuses


def bucket(per_s: float, amount: float) -> Refuses:
    state = [amount, 0.0]

    def refuses(now: float, in_flight: int) -> float | None:
        state[0] = min(amount, state[0] + per_s * (now - state[1]))
        state[1] = now
        if state[0] < 1:
            return (1 - state[0]) / per_s
        state[0] -= 1
        return None

    return refuses


def windows(kind: WindowKind, limit: int, window_s: float, *, full_in_s: float = 0.0) -> Limit:
    return Limit(Dimension.REQUESTS, limit, window_s, LimitKind.WINDOW, windows=kind, full_in_s=full_in_s)


def limited(*limits: Limit, tells: bool = True, counts_refused: bool = False) -> Refuses:
    """By what a provider is simulated with; all of them must agree."""
    allowances = [limit.allowance(0.0) for limit in limits]

    def refuses(now: float, in_flight: int) -> float | None:
        wait_s = max(allowance.fits_in_s(1, now) for allowance in allowances)
        if wait_s <= 0 or counts_refused:
            for allowance in allowances:
                allowance.take(1, now)
        return None if wait_s <= 0 else wait_s if tells else 0.0

    return refuses


def both(few: int, short_s: float, many: int, long_s: float) -> Refuses:
    return limited(
        windows(WindowKind.CLOCK, few, short_s, full_in_s=0.7 * short_s),
        windows(WindowKind.CLOCK, many, long_s, full_in_s=0.6 * long_s),
    )


def chance(share: float, seed: int, cap: float = math.inf) -> Refuses:
    rng = random.Random(seed)
    return lambda now, in_flight: 0.0 if in_flight >= cap or rng.random() < share else None


def telling(refuses: Refuses, word: Callable[[float], float]) -> Refuses:
    """With a retry-after that is not true."""

    def tells(now: float, in_flight: int) -> float | None:
        told_s = refuses(now, in_flight)
        return None if told_s is None else word(told_s)

    return tells


def shared(refuses: Refuses, others_per_s: float) -> Refuses:
    """Others, who ask no estimator, use it as well."""
    rng = random.Random(1)
    next_at = [0.0]

    def both(now: float, in_flight: int) -> float | None:
        while next_at[0] <= now:
            refuses(next_at[0], 0)
            next_at[0] += rng.expovariate(others_per_s)
        return refuses(now, in_flight)

    return both


def late(refuses: Refuses, phase_s: float) -> Refuses:
    return lambda now, in_flight: refuses(now + phase_s, in_flight)


class Case(NamedTuple):
    """A limiter, and how well it has to be found."""

    refuses: Callable[[], Refuses]
    attempts: int
    most_refused: float
    """Share of all attempts."""
    most_s: float
    prior: Prior = RATE
    service_s: float = 2.0
    uneven: float = 0.0


CASES = {
    **{
        f"chance refuses {share} and is no limit, expecting {name}": Case(
            lambda share=share: chance(share, 3), 600, 1.0, 1.25 * 600 / 12 * 2.0, prior
        )
        for share in (0.02, 0.05, 0.2)
        for name, prior in (("rate limits", RATE), ("overload", CONCURRENCY))
    },
    "a cap among chance": Case(lambda: chance(0.06, 5, cap=7), 600, 0.13, 1.15 * 600 / 7 * 2.0, CONCURRENCY),
    **{
        f"a window of {window_s} s": Case(lambda window_s=window_s: window(30, window_s), 300, 0.06, window_s * 11)
        for window_s in (20, 100, 300)
    },
    **{
        f"a window whose turn {phase_s} s before nobody saw": Case(
            lambda phase_s=phase_s: late(window(40, 20, tells=False), phase_s), 400, 0.12, 1.4 * 9 * 20, service_s=1.0
        )
        for phase_s in (3.0, 8.0, 14.0, 19.0)
    },
    **{
        f"two windows, {ends}": Case(lambda ends=ends: both(*ends), 600, 0.12, most_s, uneven=0.5)
        for ends, most_s in (((4, 1.0, 90, 60.0), 1.15 * 60 * 7), ((20, 10.0, 80, 60.0), 1.4 * 60 * 8))
    },
    "two windows, of which one is long": Case(lambda: both(60, 60, 250, 3600), 600, 0.06, 1.05 * 2 * 3600),
    **{
        f"a sliding counter that began at {began_at} and tells {tells}": Case(
            lambda began_at=began_at, tells=tells: late(
                limited(windows(WindowKind.COUNTER, 60, 60), tells=tells), -began_at % 60
            ),
            500,
            0.12,
            1.2 * 500,
            uneven=0.5,
        )
        for tells in (True, False)
        for began_at in (-7, -41)
    },
    **{
        f"a log that counts refusals and tells {tells}": Case(
            lambda tells=tells: limited(windows(WindowKind.LOG, 30, 60), tells=tells, counts_refused=True),
            300,
            0.06,
            1.25 * 9 * 60,
        )
        for tells in (True, False)
    },
    "a bucket that others use": Case(lambda: shared(bucket(1.5, 90), 0.5), 400, 0.2, 1.1 * (400 - 90)),
    "a retry-after of a minute for a second": Case(
        lambda: telling(bucket(1.0, 10), lambda _: 60.0), 400, 1.0, 1.4 * 390
    ),
    "a retry-after ten times too long": Case(
        lambda: telling(window(30, 60), lambda told_s: 10 * told_s), 300, 0.06, 1.5 * 60 * 10
    ),
    "a retry-after that is too short": Case(
        lambda: telling(window(30, 60), lambda told_s: 0.3 * told_s), 300, 0.1, 1.3 * 600
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_limit_is_found_with_few_refusals_and_used(name):
    case = CASES[name]
    hidden = HiddenLimits(case.prior)
    gateway = Gateway(hidden, case.refuses(), service_s=case.service_s, uneven=case.uneven).run(case.attempts)
    assert gateway.refused_share < case.most_refused
    assert gateway.now < case.most_s


def test_before_anything_is_refused_everything_may_go():
    hidden = HiddenLimits(RATE)
    assert hidden.opens_at(DEMAND, 100, 5.0) == 5.0
    assert hidden.limit is None
    assert hidden.cost_s(DEMAND) == 0


def test_a_window_is_learned_from_what_was_told():
    gateway = Gateway(HiddenLimits(RATE), window(30, 60)).run(300)
    assert gateway.refused_share < 0.04
    assert gateway.now < 60 * 10.1
    limit = gateway.hidden.limit
    assert limit is not None
    assert (round(limit.amount), limit.window_s) == (30, pytest.approx(60, abs=1.5))


def test_a_bucket_is_told_from_a_window():
    gateway = Gateway(HiddenLimits(RATE), bucket(0.5, 20)).run(300)
    assert gateway.refused_share < 0.1
    assert gateway.now < 1.05 * (300 - 20) / 0.5
    limit = gateway.hidden.limit
    assert limit is not None
    assert limit.is_bucket
    assert limit.amount / limit.window_s == pytest.approx(0.5, rel=0.05)


def test_errors_that_a_bucket_does_not_count_are_no_part_of_its_rate():
    rng = random.Random(2)
    one = bucket(0.3, 6)
    failing: set[int] = set()

    class Failing(Gateway):
        def _end(self) -> None:
            stamp = min(self._agenda)[1]
            if stamp in failing:
                self._agenda.remove(min(self._agenda))
                self._flights.discard(stamp)
                self._working -= 1
                self.hidden.ended(stamp, self.now, is_failed=True)
            else:
                super()._end()

    def refuses(now: float, in_flight: int) -> float | None:
        if rng.random() < 0.25:
            failing.add(gateway.stamp)
            return None
        return one(now, in_flight)

    gateway = Failing(HiddenLimits(RATE), refuses)
    gateway.run(250)
    assert gateway.refused_share < 0.12


def test_a_small_attempt_that_passes_before_the_told_end_breaks_no_word():
    small, large = Demand(input_tokens=100, total_tokens=100), Demand(input_tokens=9000, total_tokens=9000)
    closed = []
    for passing in (small, large):
        hidden = HiddenLimits(RATE)
        hidden.sent(1, large, 1, 0.0)
        hidden.refused(1, 60.0, 0.1)
        hidden.ended(1, 0.1)
        for stamp in (2, 3):
            hidden.sent(stamp, passing, 1, 1.0 * stamp)
            hidden.passed(stamp, 1.0 * stamp + 0.5)
        closed.append(hidden.closed_until)
    assert closed[0] == 60.1
    assert closed[1] < 5


def test_what_an_answer_really_took_counts():
    expected, took = Demand(input_tokens=100, total_tokens=5000), Demand(input_tokens=100, total_tokens=500)
    hidden = HiddenLimits(RATE)
    hidden.resume(HiddenLimit(2, 10_000, 100.0), 0.0)
    for stamp in (1, 2):
        hidden.sent(stamp, expected, stamp, 0.0)
    assert hidden.opens_at(expected, 2, 1.0) > 1.0
    for stamp in (1, 2):
        hidden.passed(stamp, 2.0)
        hidden.ended(stamp, 2.0, charged=took)
    assert hidden.opens_at(expected, 0, 2.0) == 2.0


@pytest.mark.parametrize("cap", [2, 7])
def test_a_cap_is_found_and_used(cap):
    gateway = Gateway(HiddenLimits(CONCURRENCY), lambda now, in_flight: 0.0 if in_flight >= cap else None)
    gateway.run(400)
    assert gateway.refused_share < 0.06
    assert gateway.now < 1.08 * 400 / cap * 2.0
    assert gateway.hidden.limit == HiddenLimit(0, pytest.approx(cap, abs=0.5))


@pytest.mark.parametrize("linger_s", [1.0, 3.0, 5.0, 10.0])
def test_a_slot_that_stays_taken_after_the_end_is_waited_for(linger_s):
    taken: list[float] = []

    def refuses(now, _):
        if sum(until > now for until in taken) >= 8:
            return 0.0
        taken.append(now + 2.0 + linger_s)
        return None

    gateway = Gateway(HiddenLimits(OF_OVERLOADS), refuses).run(400)
    assert gateway.refused_share < 0.1
    assert gateway.now < 1.25 * 400 / 8 * (2.0 + linger_s)


@pytest.mark.parametrize("caps", [(3, 9), (9, 3), (9, 3, 10)])
def test_a_cap_that_moves_is_followed(caps):
    def refuses(now: float, in_flight: int) -> float | None:
        return 0.0 if in_flight >= caps[min(int(now / 150), len(caps) - 1)] else None

    gateway = Gateway(HiddenLimits(CONCURRENCY), refuses).run(3000)
    late = [at for at in gateway.passed_at if at > 450]
    assert len(late) / (gateway.now - 450) > 0.85 * caps[-1] / 2.0
    assert gateway.refused_share < 0.08


def test_an_honest_one_is_tried_in_the_first_window_and_once_in_each_other():
    gateway = Gateway(HiddenLimits(RATE), window(30, 300)).run(150)
    waited = [at for at in gateway.refused_at if at > 10]
    assert 1 <= len([at for at in waited if at < 300]) <= 5
    assert len([at for at in waited if at > 300]) <= 3


def test_what_something_else_refused_teaches_nothing():
    hidden = HiddenLimits(RATE)
    for stamp in range(50):
        hidden.sent(stamp, DEMAND, 1, stamp)
        hidden.ended(stamp, stamp + 0.1, was_taken=False)
    assert hidden.limit is None
    assert hidden.opens_at(DEMAND, 0, 60.0) == 60.0


def test_a_limit_in_tokens_is_found_where_attempts_differ():
    hidden, rng, now, used, refused = HiddenLimits(RATE), random.Random(1), 0.0, {}, 0
    for stamp in range(600):
        tokens = rng.choice((100, 400, 3000))
        demand = Demand(input_tokens=tokens, total_tokens=tokens)
        now = max(now + 0.5, hidden.opens_at(demand, 0, now))
        hidden.sent(stamp, demand, 1, now)
        minute = int(now // 60)
        if used.get(minute, 0) + tokens > 20_000:
            refused += 1
            hidden.refused(stamp, 0.0, now + WAY_S)
        else:
            used[minute] = used.get(minute, 0) + tokens
            hidden.passed(stamp, now + WAY_S)
        hidden.ended(stamp, now + WAY_S)
    assert hidden.limit is not None
    assert hidden.limit.measure in (1, 2)
    assert 15_000 <= hidden.limit.amount <= 25_000, hidden.limit
    assert refused <= 60


def test_what_an_outage_refused_is_forgotten():
    hidden = HiddenLimits(CONCURRENCY)
    for stamp in range(10):
        hidden.sent(stamp, DEMAND, 1, stamp)
        hidden.refused(stamp, 0.0, stamp + 0.05)
        hidden.ended(stamp, stamp + 0.05)
    hidden.forget_since(0.0, 11.0)
    assert hidden.opens_at(DEMAND, 100, 12.0) == 12.0


def test_an_end_of_refusals_is_soon_found():
    """Where one session alone is refused no breaker probes; so the longest row is tried as often as that would."""
    gateway = Gateway(HiddenLimits(CONCURRENCY), lambda now, _: 0.0 if 20 <= now < 200 else None).run(400)
    assert min(at for at in gateway.passed_at if at >= 200) <= 215


def test_a_limit_of_an_earlier_run_holds_from_the_beginning_and_is_tried():
    hidden = HiddenLimits(RATE)
    hidden.resume(HiddenLimit(0, 5.0, 60.0), 0.0)
    gateway = Gateway(hidden, window(5, 60))
    gateway.run(5)
    assert gateway.refused_at == []
    gateway.run(30)
    assert gateway.refused_share < 0.25
    free = Gateway(HiddenLimits(RATE), lambda now, in_flight: None)
    free.hidden.resume(HiddenLimit(0, 5.0, 60.0), 0.0)
    free.run(100)
    assert free.now < 60, "the limit is no more"


@pytest.mark.parametrize("limit", [HiddenLimit(0, 5.0, 60.0), HiddenLimit(0, 5.0), HiddenLimit(0, 6.0, 6.0, True)])
def test_a_restart_is_no_reason_to_try_more(limit):
    hidden = HiddenLimits(RATE)
    hidden.resume(limit, 1000.0)
    for stamp in range(5):
        assert hidden.opens_at(DEMAND, stamp, 1000.0) < 1000.1
        hidden.sent(stamp, DEMAND, stamp + 1, 1000.0)
    assert hidden.opens_at(DEMAND, 5, 1000.1) > 1000.5


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("prior", [RATE, CONCURRENCY], ids=["expecting rate limits", "expecting overload"])
def test_whatever_is_refused_it_never_waits_for_nothing(prior, share):
    """Liveness: while nothing is in flight it always opens, and within a minute and what it was told."""
    rng = random.Random(share)
    told = [0.0, 0.5, 1.0, 7.0, 60.0]
    hidden = HiddenLimits(prior)
    now, longest_told_s = 0.0, 0.0
    for stamp in range(200):
        opens_at = hidden.opens_at(DEMAND, 0, now)
        assert now <= opens_at <= now + 64 * (60 + 2 * longest_told_s) + 2 * 3600 * 64
        now = opens_at
        hidden.sent(stamp, DEMAND, 1, now)
        now += WAY_S
        if rng.random() < share:
            said_s = rng.choice(told)
            longest_told_s = max(longest_told_s, said_s)
            hidden.refused(stamp, said_s, now)
        else:
            hidden.passed(stamp, now)
        hidden.ended(stamp, now)
        now += rng.choice([0.0, 0.1, 5.0])


def test_limits_are_told_in_words():
    assert str(HiddenLimit(0, 8.5)) == "8 at a time"
    assert str(HiddenLimit(0, 30.4, 60.0)) == "30 requests per 60 s"
    assert str(HiddenLimit(1, 600.0, 60.0, is_bucket=True)) == "600 input tokens per minute, 600 at once"


@pytest.mark.parametrize("heard_after_s", [0.0, 0.04])
def test_an_attempt_that_meets_a_slot_that_became_free_proves_nothing(heard_after_s):
    """It was on its way when another one ended: the cap is not above what it seemed to find."""
    gateway = Gateway(HiddenLimits(CONCURRENCY), lambda now, working: 0.0 if working >= 6 else None, uneven=0.05)
    gateway.run(120)
    hidden = gateway.hidden
    assert hidden.limit == HiddenLimit(0, pytest.approx(6, abs=0.5))
    in_flight = len(gateway._flights)
    for stamp in range(10_000, 10_020):
        gateway.now += 1.0
        ended = gateway._flights.pop()
        hidden.sent(stamp, DEMAND, in_flight + 1, gateway.now)
        gateway.now += heard_after_s
        hidden.passed(ended, gateway.now)
        hidden.ended(ended, gateway.now)
        gateway._flights.add(stamp)
    assert hidden.limit == HiddenLimit(0, pytest.approx(6, abs=0.5))


def test_a_cap_that_was_raised_is_followed_without_a_storm():
    cap = 4
    gateway = Gateway(
        HiddenLimits(CONCURRENCY), lambda now, working: 0.0 if working >= cap else None, width=40, uneven=0.05
    )
    gateway.run(300)
    before, cap = len(gateway.refused_at), 12
    gateway.run(1200)
    assert gateway.hidden.limit == HiddenLimit(0, pytest.approx(12, abs=0.5))
    assert len(gateway.refused_at) - before <= 0.04 * 900
    ends_at = gateway.refused_at[before]
    again = [at for at in gateway.refused_at[before:] if at < ends_at + 5]
    assert len(again) <= 2, "a probe above the cap tells what a trial would"


def test_a_cap_that_was_raised_is_climbed_though_answers_begin_late():
    """What is not refused at once has passed."""
    cap, found = 4, {}

    def refuses(now: float, working: int) -> float | None:
        found.setdefault(working + 1, now)
        return 0.0 if working >= cap else None

    gateway = Gateway(HiddenLimits(CONCURRENCY), refuses, width=40, service_s=20.0, uneven=0.05)
    gateway.run(100)
    cap = 12
    gateway.run(200)
    assert found[12] - found[6] < 2.0


def test_what_is_on_its_way_at_the_first_refusal_tells_before_a_probe_has_to():
    hidden = HiddenLimits(CONCURRENCY)
    for stamp in range(1, 11):
        hidden.sent(stamp, DEMAND, stamp, 0.01 * stamp)
    hidden.refused(9, 0.0, 0.14)
    hidden.ended(9, 0.14)
    assert hidden.opens_at(DEMAND, 9, 0.14) > 0.15


@pytest.mark.parametrize(("share", "seed"), [(0.2, 0), (0.2, 1), (0.35, 2)])
def test_no_guess_about_chance_keeps_the_pace_down_for_long(share, seed):
    """A slow pace confirms itself, as nothing else is tried: so something else is tried."""
    rng = random.Random(seed)
    hidden = HiddenLimits(RATE)
    hidden.resume(HiddenLimit(0, 5.0, 300.0, is_bucket=True), 0.0)
    gateway = Gateway(hidden, lambda now, working: 0.0 if rng.random() < share else None)
    gateway.run(600)
    assert gateway.now < 1500, "100 s would do, and the wrong guess lets one pass a minute"


def test_windows_that_end_in_one_instant_have_some_length():
    hidden = HiddenLimits(RATE)
    now = 0.0
    for stamp in range(60):
        now += 0.001
        hidden.sent(stamp, DEMAND, 1, now)
        if stamp % 3:
            hidden.refused(stamp, 0.0, now)
        else:
            hidden.passed(stamp, now)
        hidden.ended(stamp, now)
    assert hidden.opens_at(DEMAND, 0, now) < float("inf")


def test_an_outage_that_looks_like_a_fallen_cap_leaves_what_was_known():
    hidden = HiddenLimits(CONCURRENCY)
    gateway = Gateway(hidden, lambda now, in_flight: 0.0 if in_flight >= 8 else None).run(300)
    assert hidden.limit is not None
    assert 8 <= hidden.limit.amount < 9
    now = gateway.now + 20
    for number in range(40):
        now += 0.5
        hidden.sent(10_000 + number, DEMAND, max(1, 8 - number), now)
        hidden.refused(10_000 + number, 0.0, now + 0.1)
        hidden.ended(10_000 + number, now + 0.1)
    hidden.forget_since(now - 1, now + 0.1)
    assert hidden.limit is not None
    assert 8 <= hidden.limit.amount < 9


@pytest.mark.parametrize("refuses", [bucket(0.5, 20), window(30, 60)])
def test_whatever_a_glance_is_asked_the_limits_stay_as_they_are(refuses):
    gateway = Gateway(HiddenLimits(RATE), refuses).run(100)
    hidden, now = gateway.hidden, gateway.now
    alone = deepcopy(hidden)
    seen = [hidden.glance().opens_at(DEMAND, 0, now + second / 7) for second in range(20)]
    assert seen[0] == deepcopy(alone).opens_at(DEMAND, 0, now)
    assert hidden.opens_at(DEMAND, 0, now + 5) == alone.opens_at(DEMAND, 0, now + 5)
