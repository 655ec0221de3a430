"""Each kind of limit beside its definition, and what refusals and headers say of them."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.hints import read_hints
from hivemind_addon.kernel.values.ticket import Demand, Dimension
from hivemind_addon.sim.bound import Spent, lower_bound, lower_bound_of_models
from hivemind_addon.sim.call import SimRequestFacts
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.limits import (
    Ban,
    Limit,
    LimitChange,
    LimitKind,
    LimitReport,
    ModelScope,
    RetryAfter,
    SimBan,
    WindowKind,
)
from hivemind_addon.sim.provider import ProviderSettings, SimProvider
from tests.cases import each
from tests.sim.oracle import left

REQUESTS = Dimension.REQUESTS
BUCKET = Limit(REQUESTS, 6, 10.0)
WINDOW = replace(BUCKET, kind=LimitKind.WINDOW)
KINDS = {
    "bucket": BUCKET,
    "burst": replace(BUCKET, burst=3),
    "spacing": replace(BUCKET, burst=1),
    **{kind.value: replace(WINDOW, windows=kind) for kind in WindowKind},
    "clock": replace(WINDOW, windows=WindowKind.CLOCK, full_in_s=3.7),
    "growth": replace(BUCKET, growth=1.5),
}
CALLS = st.lists(st.tuples(st.floats(0, 12), st.integers(1, 4)), max_size=30)
WALL = 1_800_000_000.0
ASKED = SimRequestFacts(SimDialect.MESSAGES, "sk-sim-a", input_tokens=100, max_tokens=50)


def provider(*limits, **settings):
    return SimProvider(ProviderSettings(limits, **settings), random.Random(0), wall_offset_s=WALL)


def play(sim, now, request=ASKED):
    answer = sim.begin(now, request)
    sim.end(now, answer)
    return answer


def hints(answer, profile="anthropic", now=0.0):
    """An instant in whole seconds is read as its end: resets are a second late, which `+ 1` stands for below."""
    return read_hints(load_profiles(None).by_name[profile], dict(answer.headers), WALL + now)


@pytest.mark.parametrize("name", KINDS)
@given(calls=CALLS)
def test_a_call_waits_exactly_as_long_as_the_definition_of_its_limit_asks(name, calls):
    limit = KINDS[name]
    most = limit.burst or limit.amount
    allowance, taken, now = limit.allowance(0.0), [], 0.0
    for after_s, units in calls:
        now += after_s
        assert allowance.level(now) == pytest.approx(left(limit, taken, now), abs=1e-4)
        wait_s = allowance.fits_in_s(units, now)
        if math.isinf(wait_s):
            assert units > most
            continue
        if wait_s > 2e-3:
            assert left(limit, taken, now + wait_s - 1e-3) < units, "it fits sooner"
        now += wait_s
        assert allowance.fits(units, now)
        allowance.take(units, now)
        taken.append((now, units))


@each("name", KINDS)
@each("units", [1, 6, 7, 15, 31])
def test_nobody_is_faster_than_the_bound(name, units):
    limit = KINDS[name]
    now, allowance = 0.0, limit.allowance(0.0)
    for _ in range(units):
        now += allowance.fits_in_s(1, now)
        allowance.take(1, now)
    bound_s = lower_bound(Spent({REQUESTS: units}, 0.0, 0.0), [limit], concurrency=None).bound_s
    assert bound_s <= now + 1e-6
    assert name in {"growth", "counter"} or bound_s == pytest.approx(now, abs=1e-3), "whoever is greedy reaches it"


@each(
    ("limit", "units", "bound_s"),
    [
        (replace(BUCKET, changes=(LimitChange(10, 12),)), 24, 20),
        (replace(BUCKET, changes=(LimitChange(10, 3),)), 15, 20),
        (replace(WINDOW, changes=(LimitChange(20, 3),)), 15, 20),
        (replace(WINDOW, changes=(LimitChange(5, 12),)), 24, 10),
    ],
)
def test_the_bound_knows_of_later_amounts(limit, units, bound_s):
    assert lower_bound(Spent({REQUESTS: units}, 0.0, 0.0), [limit], concurrency=None).bound_s == pytest.approx(bound_s)


def test_the_bound_of_each_user_is_that_of_who_has_most():
    settings = ProviderSettings((replace(WINDOW, scope=ModelScope.USER),))
    turns = [(0.0, 1.0)]
    spent = {"m": Spent({REQUESTS: 13}, 0.0, 0.0, [turns * 13, turns * 2])}
    assert lower_bound_of_models(spent, settings, concurrency=None).bound_s == 20 + 1


def test_a_slot_that_lingers_is_a_part_of_the_bound():
    spent = {"m": Spent({}, 0.0, 12.0, [[(0.0, 1.0)] * 12])}
    assert lower_bound_of_models(spent, ProviderSettings(linger_s=2), concurrency=2).bound_s == (12 + 10 * 2) / 2


def test_a_limit_that_changes_keeps_what_was_taken():
    bucket = replace(BUCKET, amount=60, changes=(LimitChange(5, 120), LimitChange(6, 6))).allowance(0.0)
    bucket.take(60, 0.0)
    assert [bucket.level(now) for now in (5.0, 5.5, 6.0)] == [30, 36, 6]
    window = replace(WINDOW, changes=(LimitChange(3, 2),)).allowance(0.0)
    window.take(3, 1.0)
    assert (window.level(2.0), window.level(3.0), window.fits_in_s(1, 3.0), window.level(10.0)) == (3, -1, 7, 2)


@each(("name", "free"), [("bucket", -6), ("burst", -3), ("beat", -7), ("log", -7)])
def test_refusals_that_count_shut_whoever_hammers(name, free):
    for counts in (False, True):
        limit = replace(KINDS[name], counts_refusals=counts)
        allowance = limit.allowance(0.0)
        allowance.take(limit.burst or 6, 0.0)
        for _ in range(7):
            allowance.refuse(1, 0.0)
        assert allowance.level(0.0) == (free if counts else 0)


def test_a_charge_that_was_too_high_is_given_back():
    for limit in KINDS.values():
        allowance = limit.allowance(0.0)
        before = allowance.level(1.0)
        allowance.take(1, 1.0)
        allowance.take(5, 1.0)
        allowance.take(-6, 2.0)
        assert allowance.level(2.0) == pytest.approx(before), limit


def test_a_ban_follows_refusals_that_come_too_close():
    ban = SimBan(Ban(3, 10, lasts_s=45))
    for at in (0, 6, 12):
        ban.refused(at)
        assert ban.wait_s(at) == 0
    ban.refused(13)
    assert ban.wait_s(20) == 38
    ban.refused(50)
    assert ban.wait_s(58) == 0


def test_whoever_is_banned_is_refused_though_the_limit_has_room():
    sim = provider(WINDOW, ban=Ban(2, 5, lasts_s=45))
    assert [play(sim, now).status for now in (0, 0, 0, 0, 0, 0, 1, 2, 20, 46, 47)] == [200] * 6 + [429] * 4 + [200]
    assert dict(play(sim, 47.5).headers)["x-sim-attempt"] == "12"


def test_a_window_by_the_clock_is_the_same_for_all_and_drawn_by_the_seed():
    limit = replace(WINDOW, windows=WindowKind.CLOCK, scope=ModelScope.MODEL)
    for seed in range(5):
        sim = SimProvider(ProviderSettings((limit,)), random.Random(seed))
        (drawn,) = sim.settings.limits
        for model, at in (("a", 0.0), ("b", 4.0)):
            asked = replace(ASKED, model=model)
            for _ in range(7):
                answer = play(sim, at, asked)
            resets_in_s = int(dict(answer.headers)["retry-after"])
            assert resets_in_s == math.ceil((drawn.full_in_s - at) % 10 or 10)


def test_each_end_user_has_a_limit_of_their_own():
    sim = provider(replace(WINDOW, amount=1, scope=ModelScope.USER), concurrency=1, concurrency_scope=ModelScope.USER)
    users = [replace(ASKED, credential=f"sk-sim-{name}") for name in "ab"]
    assert [play(sim, now, user).status for now in (0, 1) for user in users] == [200, 200, 429, 429]
    running = [sim.begin(20, user) for user in users]
    assert [one.status for one in running] == [200, 200]
    assert sim.begin(20, users[0]).status == 429


def test_tokens_in_flight_are_input_and_the_most_output_and_a_call_alone_always_fits():
    sim = provider(tokens_at_once=400, concurrency_retry_after_s=7)
    running = [sim.begin(0, ASKED), sim.begin(0, ASKED)]
    refused = sim.begin(0, ASKED)
    assert (refused.status, hints(refused).retry_after_s) == (529, 7)
    assert sim.begin(0, replace(ASKED, max_tokens=0)).status == 200
    for answer in running:
        sim.end(1, answer)
    assert sim.begin(1, replace(ASKED, max_tokens=9000)).status == 529
    assert provider(tokens_at_once=400).begin(0, replace(ASKED, max_tokens=9000)).status == 200


def test_a_slot_may_stay_taken_after_the_end():
    sim = provider(concurrency=2, linger_s=5)
    first, second = sim.begin(0, ASKED), sim.begin(0, ASKED)
    sim.end(1, first)
    sim.end(2, second)
    assert [play(sim, now).status for now in (3, 5.9)] == [529, 529]
    assert sim.serves_in_s(3, ASKED, Demand()) == 3
    assert sim.truth().in_flight == 0
    assert play(sim, 6).status == 200


@each(
    ("says", "word"),
    [
        (RetryAfter.EXACT, 2.5),
        (RetryAfter.ROUNDED_UP, 3),
        (RetryAfter.CUT, 2),
        (RetryAfter.MISSING, None),
        (RetryAfter.SHORT, 1),
        (RetryAfter.LONG, 25),
        (RetryAfter.ALWAYS_60, 60),
    ],
)
def test_a_refusal_says_when_to_come_back_as_the_setting_has_it(says, word):
    sim = provider(replace(WINDOW, amount=1), retry_after=says)
    play(sim, 0.0)
    assert hints(play(sim, 7.5)).retry_after_s == word


def test_headers_may_tell_another_limit_late_or_only_of_answers():
    told = {
        "more": LimitReport(amount=90),
        "longer": LimitReport(amount=60, window_s=60),
        "late": LimitReport(age_s=3),
        "answers": LimitReport(on_refusals=False),
    }
    seen = {}
    for name, report in told.items():
        sim = provider(replace(WINDOW, reports=report))
        answers = [play(sim, now) for now in (0, 2, 4, 4, 4, 4, 5)]
        readings = [hints(answer, now=0).readings for answer in answers]
        seen[name] = [(one[0].limit, one[0].remaining, one[0].reset_in_s) if one else None for one in readings]
    assert seen["more"][-2:] == [(90, 84, 10 + 1), (90, 84, 10 + 1)]
    assert seen["longer"][-1] == (60, 54, 60 + 1)
    assert seen["late"] == [(6, remaining, 10 + 1) for remaining in (5, 5, 5, 5, 5, 5, 4)]
    assert seen["answers"] == [(6, remaining, 10 + 1) for remaining in (5, 4, 3, 2, 1, 0)] + [None]


@each("dates", [False, True])
def test_a_provider_whose_clock_is_behind_writes_its_own_instants(dates):
    sim = provider(WINDOW, clock_s=-30.0, dates=dates)
    (reading,) = hints(play(sim, 4.0), now=4.0).readings
    assert reading.reset_in_s == (10 + 1 if dates else 0)


@each(
    ("plan", "profile", "dialect", "named"),
    [
        ("5h", "anthropic", SimDialect.MESSAGES, ["5h", "unified"]),
        ("7d_oi", "anthropic", SimDialect.MESSAGES, ["7d-oi", "unified"]),
        ("primary", "codex", SimDialect.RESPONSES, ["primary"]),
        ("secondary", "codex", SimDialect.RESPONSES, ["secondary"]),
    ],
)
def test_the_window_of_a_plan_is_read_by_the_profile_that_knows_it(plan, profile, dialect, named):
    limit = Limit(REQUESTS, 4, 18_000, LimitKind.WINDOW, windows=WindowKind.OPENED, plan=plan)
    sim = provider(limit)
    asked = replace(ASKED, dialect=dialect)
    answers = [play(sim, now, asked) for now in (0, 0, 0, 0, 600)]
    windows = hints(answers[2], profile).windows
    assert [window.window for window in windows] == named
    assert (windows[0].used, windows[0].resets_in_s) == (0.75, 18_000 + 1)
    refused = hints(answers[4], profile, 600.0)
    assert answers[4].status == 429
    assert not refused.readings
    assert (refused.windows[0].used, refused.windows[0].resets_in_s, refused.retry_after_s) == (1, 17_400 + 1, 17_400)
    if profile == "anthropic":
        assert {window.status for window in refused.windows} == {"rejected"}
        assert {window.status for window in windows} == {"allowed"}
    else:
        assert b"usage_limit_reached" in answers[4].body()
        assert windows[0].length_s == 18_000


def test_the_plan_that_is_spent_stands_for_all():
    week = Limit(REQUESTS, 9, 604_800, LimitKind.WINDOW, plan="7d")
    sim = provider(replace(week, amount=2, window_s=18_000, plan="5h"), week)
    for _ in range(2):
        play(sim, 0)
    headers = dict(play(sim, 0).headers)
    unified = {name.removeprefix("anthropic-ratelimit-unified-"): value for name, value in headers.items()}
    assert (unified["status"], unified["5h-status"], unified["7d-status"]) == ("rejected", "rejected", "allowed")
    assert unified["reset"] == unified["5h-reset"] == str(int(WALL) + 18_000)
    assert (unified["representative-claim"], unified["7d-utilization"]) == ("five_hour", "0.22")
