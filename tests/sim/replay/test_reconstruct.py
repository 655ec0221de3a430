"""From a capture to a scenario: chains of calls, given limits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.learned import LearnedPool
from hivemind_addon.kernel.values.ticket import CallKind, Dimension, OutcomeKind, PoolKey, Priority, Usage
from hivemind_addon.plugins.captures.model import Capture, LimitSeen
from hivemind_addon.sim import faults
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.policy import COMPARED, policy_named
from hivemind_addon.sim.replay.chains import chained
from hivemind_addon.sim.replay.limits import BadLimit, GivenLimit, given_limit, imposed, in_words
from hivemind_addon.sim.replay.reconstruct import NothingToReplay, reconstruct
from hivemind_addon.sim.world import run
from tests.cases import each
from tests.sim.replay.nights import POOL, REQUESTS, attempt, call, capture, fleet


def script_of(*calls, **how):
    return reconstruct(capture(*calls), **how).scenario.script


def failing(kind, status, **more):
    return attempt(0, took_s=1.0, kind=kind, status=status, **more)


def test_a_turn_takes_as_long_as_its_successful_attempt_took():
    (one,) = script_of(call("1", 5, attempts=(failing(OutcomeKind.FAILED, 500), attempt(7, took_s=8, head_after_s=2))))
    assert (one.turn.think_s, one.turn.latency_s, one.turn.generation_s) == (0, 2, 6)
    assert (one.turn.prompt_tokens, one.turn.output_tokens) == (1000, 100)


def test_an_unstreamed_answer_is_all_latency():
    (one,) = script_of(replace(call("1", 5), streamed=False))
    assert (one.turn.latency_s, one.turn.generation_s) == (2, 0)


def test_the_ticket_is_what_was_asked_for():
    asked = replace(
        call("1", 5, kind=CallKind.COMPACTION, priority=Priority.HIGH, patience_s=300),
        weight=2.0,
        prefix="p",
        prefix_tokens=900,
    )
    (one,) = script_of(asked)
    ticket = one.ticket
    assert (ticket.kind, ticket.priority, ticket.weight) == (CallKind.COMPACTION, Priority.HIGH, 2.0)
    assert (ticket.deadline_at, ticket.shed_at, ticket.prefix_tokens) == (300, 295, 900)
    assert ticket.demand == asked.demand
    assert ticket.price is not None


@each(
    ("kind", "status", "fault"),
    [
        (OutcomeKind.FAILED, 502, faults.ErrorStatus(502, message="502 error")),
        (OutcomeKind.OVERLOADED, 529, faults.ErrorStatus(529, message="529 error")),
        (OutcomeKind.FAILED, None, faults.NoHead(faults.Hangup.RESET)),
        (OutcomeKind.FAILED, 200, faults.HeadThenReset()),
    ],
)
def test_a_failed_attempt_fails_again_after_the_time_that_it_took(kind, status, fault):
    (one,) = script_of(call("1", 5, attempts=(failing(kind, status), attempt(7))))
    (told,) = one.faults
    assert told.fault == fault
    assert told.after_s == (1.0 if status is None else 0.25)


def test_a_rate_limits_refusal_is_left_to_the_simulated_limits():
    (one,) = script_of(call("1", 5, attempts=(failing(OutcomeKind.THROTTLED, 429), attempt(7))))
    assert one.faults == ()


def test_a_stream_that_its_client_saw_break_off_breaks_off_again():
    (one,) = script_of(call("1", 5, attempts=(failing(OutcomeKind.FAILED, 200),)))
    assert [told.fault for told in one.faults] == [faults.StreamCut()]


def test_what_was_wrong_in_itself_fails_and_is_no_policys_fault():
    wrong = call("1", 5, attempts=(failing(OutcomeKind.IGNORED, 400),))
    replayable = reconstruct(capture(wrong, call("2", 20)))
    result = run(replayable.scenario, seed=0)
    assert [one.death is None for one in result.script] == [False, True]
    assert result.lost == 0


def test_a_turn_that_never_got_an_answer_takes_what_others_took():
    dead = call("2", 20, attempts=(failing(OutcomeKind.OVERLOADED, 529),))
    replayable = reconstruct(capture(call("1", 0, took_s=4), dead))
    assert replayable.assumed == 1
    assert replayable.scenario.script[1].turn.service_s == 4
    assert replayable.scenario.script[1].is_vital


def test_what_its_client_left_unfinished_takes_until_it_left():
    left = call("1", 0, attempts=(attempt(0, took_s=3, kind=OutcomeKind.CANCELLED, status=200),), end="cancelled")
    (one,) = script_of(left, call("other", 0, agent="b", took_s=9))[:1]
    assert one.turn.service_s == 3
    assert one.faults == ()


def test_a_call_that_was_never_sent_and_left_is_left_out():
    replayable = reconstruct(capture(call("1", 0), call("2", 9, attempts=(), end="cancelled")))
    assert [one.ticket.id for one in replayable.scenario.script] == ["1"]
    assert replayable.left_out == 1


def test_limits_are_the_last_ones_that_were_seen_or_what_is_given_instead():
    unknown = replace(LimitSeen(0, POOL, "input-tokens", "unknown", 40_000, 60, Dimension.INPUT_TOKENS))
    grown = LimitSeen(9, POOL, "requests", "window", 90, 60, Dimension.REQUESTS)
    first = LimitSeen(0, POOL, "requests", "unknown", 50, 60, Dimension.REQUESTS)
    vague = LimitSeen(9, POOL, "tokens", "bucket", 90, None, Dimension.TOTAL_TOKENS)
    quota = LimitSeen(9, POOL, "quota", "50 requests per 60 s", 50, 60, None)
    night = capture(call("1", 0), limits=(first, unknown, grown, vague, quota))
    (site,) = reconstruct(night).scenario.sites
    assert site.provider.limits == (
        Limit(Dimension.REQUESTS, 90, 60, LimitKind.WINDOW),
        Limit(Dimension.INPUT_TOKENS, 40_000, 60),
        Limit(Dimension.REQUESTS, 50, 60, LimitKind.WINDOW, told=False),
    )
    (site,) = reconstruct(night, given=[given_limit("requests=7/min")]).scenario.sites
    assert site.provider.limits == (Limit(Dimension.INPUT_TOKENS, 40_000, 60), Limit(Dimension.REQUESTS, 7, 60))


def test_each_pool_has_a_provider_that_speaks_its_dialect():
    chat = call("2", 1, agent="b", pool=PoolKey("llm.corp", "k", "m"), dialect="openai-chat", profile="gone")
    sites = reconstruct(capture(call("1", 0), chat)).scenario.sites
    assert [(site.profile, site.dialect) for site in sites] == [
        ("anthropic", SimDialect.MESSAGES),
        ("openai", SimDialect.CHAT),
    ]


def test_copies_have_names_of_their_own_and_begin_a_little_later():
    night = capture(call("1", 0), call("2", 3), call("b1", 5, agent="b"))
    script = reconstruct(night, copies=3, seed=4).scenario.script
    assert [one.ticket.id for one in script] == ["1", "2", "b1", "1~2", "2~2", "b1~2", "1~3", "2~3", "b1~3"]
    assert script[4].after == ("1~2",)
    assert {one.ticket.agent for one in script} == {"a", "b", "a~2", "b~2", "a~3", "b~3"}
    assert all(0 < script[place].turn.think_s - script[place % 3].turn.think_s < 5 for place in (3, 5, 6, 8))
    assert script == reconstruct(night, copies=3, seed=4).scenario.script
    assert script != reconstruct(night, copies=3, seed=5).scenario.script


def test_a_conversation_reads_what_its_last_turn_wrote():
    def cached(name, at_s, read, written):
        usage = Usage(
            input_tokens=10, cache_read_tokens=read, cache_write_tokens=written, output_tokens=9, reported=True
        )
        return replace(call(name, at_s, attempts=(attempt(at_s, usage=usage),)), prefix="p", prefix_tokens=500)

    night = capture(cached("1", 0, 0, 800), cached("2", 3, 800, 100), cached("3", 900, 0, 950))
    first, second, third = reconstruct(night).scenario.script
    assert [mark.tokens for mark in first.prefixes] == [500, 800]
    assert [mark.tokens for mark in second.prefixes] == [500, 800, 900]
    assert second.prefixes[1].key == first.prefixes[1].key
    spent = [one.billed.tokens for one in run(reconstruct(night).scenario, seed=0).script]
    assert spent == [819, 919, 969]
    assert third.prefixes[1].key == second.prefixes[2].key


@each("calls", [(), (call("1", 0, attempts=(), end="cancelled"),)])
def test_a_capture_without_anything_in_it_says_so(calls):
    with pytest.raises(NothingToReplay, match="record"):
        reconstruct(Capture(calls=calls))


def test_without_anything_in_the_way_a_fleet_ends_when_it_ended():
    night = fleet(5, 6)
    unlimited = reconstruct(night, given=[given_limit("requests=none")]).scenario
    whole = replace(unlimited, script=tuple(replace(one, faults=()) for one in unlimited.script))
    recorded_s = max(one.ended_s for one in night.calls) - night.calls[0].at_s
    result = run(whole, seed=0)
    assert result.lost == 0
    assert recorded_s - 2 < result.makespan_s < recorded_s + 5


def test_a_recording_that_a_file_holds_twice_counts_once():
    night = capture(call("1", 0), call("2", 3), call("1", 0))
    assert [one.ticket.id for one in reconstruct(night).scenario.script] == ["1", "2"]
    assert reconstruct(night).left_out == 0


def test_a_limit_for_no_pool_of_the_capture_is_refused():
    with pytest.raises(BadLimit, match=r"there are api\.anthropic\.com/key-1/claude-sonnet"):
        reconstruct(capture(call("1", 0)), given=[given_limit("concurrency=3@*nowhere*")])


def test_a_night_has_no_end_but_its_own():
    late = capture(call("1", 0), call("2", 40_000), call("3", 90_000))
    result = run(reconstruct(late).scenario, seed=0)
    assert result.lost == 0
    assert result.makespan_s == pytest.approx(90_002)


_KINDS = st.sampled_from(list(OutcomeKind))
_SECONDS = st.sampled_from([0.0, 0.01, 0.5, 3.0, 700.0])
_TOKENS = st.sampled_from([0, 1, 50, 9000])


@st.composite
def odd_calls(draw):
    at_s, attempts = draw(st.floats(0, 60)), []
    for number in range(draw(st.integers(0, 3))):
        kind = draw(_KINDS)
        status = 200 if kind is OutcomeKind.SUCCESS else draw(st.sampled_from([None, 200, 400, 429, 500, 529]))
        usage = Usage(draw(_TOKENS), draw(_TOKENS), draw(_TOKENS), draw(_TOKENS), reported=True)
        attempts.append(
            attempt(
                at_s, took_s=draw(_SECONDS), kind=kind, status=status, number=number + 1, head_after_s=draw(_SECONDS),
                usage=draw(st.sampled_from([None, usage])),
            )
        )  # fmt: skip
    made = call(
        str(draw(st.integers(0, 99))), at_s, agent=draw(st.sampled_from("abc")), attempts=tuple(attempts),
        parent_session=draw(st.sampled_from(["", "a", "b"])), kind=draw(st.sampled_from(list(CallKind))),
        request_hash=draw(st.sampled_from(["", "x", "y"])), patience_s=draw(st.sampled_from([0.0, 5.0, 600.0])),
        end=draw(st.sampled_from(["delivered", "gave up", "shed", "refused", "cancelled"])),
    )  # fmt: skip
    return replace(
        made, streamed=draw(st.booleans()), ended_s=at_s + draw(_SECONDS), prefix="p", prefix_tokens=draw(_TOKENS)
    )


@given(
    st.lists(odd_calls(), min_size=1, max_size=8), st.sampled_from([one.name for one in COMPARED]), st.integers(1, 2)
)
def test_whatever_was_recorded_can_be_replayed_to_its_end(calls, policy, copies):
    try:
        replayable = reconstruct(capture(*calls), given=[given_limit("requests=6/min")], copies=copies)
    except NothingToReplay:
        return
    result = run(replayable.scenario, seed=0, policy=policy_named(policy))
    assert all(one.ended_at is not None for one in result.script)
    assert result.lost or result.makespan_s >= result.bound.bound_s - 1e-6


# Chains ---------------------------------------------------------------------------------------------------------------


def after(*calls):
    return {turn.id: sorted(other.id for other in turn.after) for turn in chained(calls)}


def failed(name, at_s, **more):
    return call(name, at_s, attempts=(attempt(at_s, took_s=1, kind=OutcomeKind.OVERLOADED, status=529),), **more)


def test_calls_of_one_session_follow_each_other_after_their_think_time():
    turns = chained([call("1", 0), call("2", 3), call("3", 9)])
    assert [[other.id for other in turn.after] for turn in turns] == [[], ["1"], ["2"]]
    assert [turn.think_s for turn in turns] == [0, 1, 4]


def test_sessions_know_nothing_of_each_other():
    assert after(call("1", 0), call("2", 3, agent="b")) == {"1": [], "2": []}


def test_calls_that_overlap_are_a_fork_and_what_comes_behind_both_is_a_join():
    calls = call("1", 0), call("left", 3), call("right", 3.1, took_s=8), call("join", 12)
    assert after(*calls) == {"1": [], "left": ["1"], "right": ["1"], "join": ["left", "right"]}


def test_two_conversations_beside_each_other_are_told_apart_by_their_prompts():
    calls = [call(f"a{n}", 4 * n, prefix="a") for n in range(3)]
    calls += [call(f"b{n}", 4 * n + 1, took_s=2.5, prefix="b") for n in range(3)]
    found = after(*calls)
    assert (found["a1"], found["a2"]) == (["a0"], ["a1"])
    assert (found["b1"], found["b2"]) == (["b0"], ["b1"])


def test_two_conversations_that_nothing_tells_apart_stay_two():
    calls = [call(f"a{n}", 4 * n) for n in range(3)] + [call(f"b{n}", 4 * n + 1, took_s=2.5) for n in range(3)]
    followed = [other for others in after(*calls).values() for other in others]
    assert len(followed) == len(set(followed)) == 4


def test_nobody_waits_for_a_title():
    calls = call("1", 0), call("title", 3, took_s=1, kind=CallKind.AUXILIARY), call("2", 5)
    assert after(*calls) == {"1": [], "title": ["1"], "2": ["1"]}


def test_a_client_may_send_a_moment_before_its_last_answer_is_booked():
    turns = chained([call("1", 0, took_s=2.02), call("2", 2)])
    assert [other.id for other in turns[1].after] == ["1"]
    assert turns[1].think_s == 0


def test_what_a_client_sends_again_after_a_failure_is_one_turn():
    (turn,) = chained(
        [failed("1", 0, request_hash="x"), failed("2", 3, request_hash="x"), call("3", 6, request_hash="x")]
    )
    assert (turn.id, turn.is_delivered, turn.ended_s) == ("1", True, 8)
    assert [one.status for one in turn.attempts] == [529, 529, 200]


def test_what_was_answered_and_is_asked_again_is_another_turn():
    assert after(call("1", 0, request_hash="x"), call("2", 3, request_hash="x")) == {"1": [], "2": ["1"]}


def test_a_sub_agent_follows_its_parents_turn_and_the_parent_waits_for_it():
    calls = (
        call("lead", 0),
        call("sub1", 3, agent="s", parent_session="a"),
        call("sub2", 6, agent="s", parent_session="a"),
        call("next", 9),
    )
    assert after(*calls) == {"lead": [], "sub1": ["lead"], "sub2": ["sub1"], "next": ["lead", "sub2"]}


def test_a_parent_that_goes_on_waits_for_no_sub_agent():
    calls = call("lead", 0), call("sub", 3, agent="s", parent_session="a", took_s=20), call("next", 5)
    assert after(*calls) == {"lead": [], "sub": ["lead"], "next": ["lead"]}


def test_a_sub_agent_without_a_parent_in_the_capture_stands_alone():
    assert after(call("sub", 3, parent_session="gone"), call("own", 4, agent="b", parent_session="b")) == {
        "sub": [],
        "own": [],
    }


@each("apart_s", [0.0, 0.01, 0.04])
def test_nothing_waits_for_itself_even_when_everything_happens_at_once(apart_s):
    calls = [call(f"{n}", n * apart_s, took_s=0.0, parent_session="b" if n % 2 else "") for n in range(4)]
    calls += [call(f"b{n}", n * apart_s, took_s=0.0, agent="b", parent_session="a") for n in range(4)]
    waits_for = after(*calls)
    done = set()
    while len(done) < len(waits_for):
        ready = {name for name, others in waits_for.items() if name not in done and done >= set(others)}
        assert ready
        done |= ready


# Limits ---------------------------------------------------------------------------------------------------------------


POOL_LIMITS = PoolKey("api.anthropic.com", "key-1", "claude")


@each(
    ("text", "dimension", "amount", "window_s", "kind"),
    [
        ("requests=60/min", Dimension.REQUESTS, 60, 60, LimitKind.BUCKET),
        ("input_tokens=450k/min", Dimension.INPUT_TOKENS, 450_000, 60, LimitKind.BUCKET),
        ("output-tokens=90K/MIN:window", Dimension.OUTPUT_TOKENS, 90_000, 60, LimitKind.WINDOW),
        ("total_tokens=1.5M/day:bucket", Dimension.TOTAL_TOKENS, 1_500_000, 86_400, LimitKind.BUCKET),
        ("requests=1/30s", Dimension.REQUESTS, 1, 30, LimitKind.BUCKET),
        ("requests=none", Dimension.REQUESTS, None, 60, LimitKind.BUCKET),
        ("concurrency=5", None, 5, 60, LimitKind.BUCKET),
    ],
)
def test_a_limit_is_read_as_people_type_it(text, dimension, amount, window_s, kind):
    assert given_limit(text) == GivenLimit(text, dimension, amount, window_s, kind)


@each(
    ("text", "cure"),
    [
        ("requests", "write requests=60/min"),
        ("requests=60", "does not say per what; write requests=60/min"),
        ("tokens=5/min", "there are requests, input_tokens, output_tokens, total_tokens, concurrency"),
        ("requests=0/min", "requests=none takes the limit away"),
        ("concurrency=5/min", "write concurrency=5"),
        ("requests=60/fortnight", "write requests=60/min"),
        ("requests=5/0s", "a window of no length"),
        ("", "write requests=60/min"),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused_with_its_cure(text, cure):
    with pytest.raises(BadLimit) as refusal:
        given_limit(text)
    assert cure in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_given_replaces_all_that_was_recorded_of_its_kind():
    recorded = (Limit(Dimension.REQUESTS, 50), Limit(Dimension.REQUESTS, 1, 1.0), Limit(Dimension.INPUT_TOKENS, 9))
    given = [given_limit("requests=7/min:window"), given_limit("concurrency=3")]
    limits, concurrency = imposed(recorded, None, given, POOL_LIMITS)
    assert limits == (Limit(Dimension.INPUT_TOKENS, 9), Limit(Dimension.REQUESTS, 7, 60, LimitKind.WINDOW))
    assert concurrency == 3


def test_a_limit_may_be_for_some_pools_only():
    given = [given_limit("concurrency=3@*openai*"), given_limit("requests=none@*anthropic*")]
    assert imposed((Limit(Dimension.REQUESTS, 50),), 9, given, POOL_LIMITS) == ((), 9)


@each("text", ["requests=60/min:bucket", "input_tokens=450k/min:window", "requests=1/30s:bucket"])
def test_a_limit_in_words_is_what_would_be_typed(text):
    given = given_limit(text)
    limit = Limit(given.dimension, given.amount, given.window_s, given.kind)
    assert in_words(limit) == text


HIDDEN_WINDOW = LimitSeen(0.0, POOL, "hidden limit", "window", 8.5, 10.0, Dimension.REQUESTS, left=3.0, full_in_s=7.0)


def test_what_was_known_as_the_capture_began_is_known_to_the_replay():
    learned = LearnedPool(
        host=POOL.host,
        account=POOL.account,
        model_group=POOL.model_group,
        meters=(),
        throttles=HiddenLimit(0, 8.5, 10.0),
    )
    cap = LimitSeen(0.0, POOL, "concurrency", "at a time", 4.0, left=4.0)
    later = replace(HIDDEN_WINDOW, at_s=9.0, limit=9.0, left=None, full_in_s=None)
    night = capture(call("1", 2.0), limits=(HIDDEN_WINDOW, cap, later), learned=(learned,))
    scenario = reconstruct(night).scenario
    provider = scenario.sites[0].provider
    assert scenario.learned == (learned,)
    assert provider.concurrency == 4
    (limit,) = provider.limits
    assert (limit.amount, limit.told, limit.left, limit.full_in_s) == (9, False, 3.0, 5.0)  # two seconds later
    other = reconstruct(night, given=[given_limit("requests=60/min")]).scenario
    assert other.learned == ()


def test_a_window_into_which_the_recorded_calls_do_not_fit_is_shorter():
    told = replace(REQUESTS, kind="window", limit=8.0, window_s=60.0, left=8.0)
    calls = [call(f"{burst}.{number}", burst * 10.0, agent=f"a{number}") for burst in range(7) for number in range(8)]
    (limit,) = reconstruct(capture(*calls, limits=(told,))).scenario.sites[0].provider.limits
    assert limit.window_s == 10.0
    (limit,) = reconstruct(capture(*calls[:9], limits=(told,))).scenario.sites[0].provider.limits
    assert limit.window_s == 60.0


@each(
    ("kind", "at_s", "left"), [(LimitKind.WINDOW, 4.0, 3.0), (LimitKind.WINDOW, 8.0, 8.0), (LimitKind.BUCKET, 2.0, 4.6)]
)
def test_a_limit_begins_as_full_as_it_was(kind, at_s, left):
    allowance = Limit(Dimension.REQUESTS, 8, 10.0, kind, left=3.0, full_in_s=7.0).allowance(0.0)
    assert allowance.level(at_s) == pytest.approx(left)
