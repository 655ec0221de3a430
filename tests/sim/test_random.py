"""Random loads: what they are, and that no odd end of an answer is paid twice."""

from collections import Counter
from dataclasses import replace
from itertools import product

import msgspec

from hivemind_addon.formats.wire.answer import AnswerReader
from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_transport
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.faults import ODD_ENDS, FaultMix
from hivemind_addon.sim.limits import LimitKind, RetryAfter
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.random_loads import number_in, patience_s, random_load, whole_s
from hivemind_addon.sim.workload import Crowd, Scenario
from hivemind_addon.sim.world import run
from tests.cases import each
from tests.sim.oracle import run_oracle

LOADS = [random_load(number).scenario for number in range(300)]


def failing(load):
    return sum(share for name, share in load.provider.faults.items() if name not in ODD_ENDS)


def test_a_number_is_one_load_for_ever():
    assert [random_load(number).scenario for number in range(20)] == LOADS[:20]
    assert len({repr((load.crowds, load.provider)) for load in LOADS}) == len(LOADS)


def test_its_name_holds_its_number():
    assert [number_in(load.name) for load in LOADS] == list(range(300))
    assert number_in("random-") is None
    assert number_in("micro-5") is None


def test_all_kinds_of_everything_occur():
    """Of each at least so many in 300; what hardly occurs proves nothing."""
    seen = Counter()
    for load in LOADS:
        provider = load.provider
        seen.update({(limit.kind, limit.dimension) for limit in provider.limits})
        seen.update({f"window of {limit.window_s:g} s" for limit in provider.limits})
        seen.update({f"fault {name}" for name in provider.faults})
        seen.update(
            name
            for name, is_so in {
                "no headers": not provider.rate_limit_headers,
                "no retry-after": provider.retry_after is RetryAfter.MISSING,
                "refusals count": provider.charge_failures,
                "a hidden limit": any(not limit.told for limit in provider.limits),
                "a cap": provider.concurrency is not None,
                "a moving cap": bool(load.caps),
                "an outage": bool(provider.outages),
                "a neighbour": bool(load.neighbours),
                "many faults": failing(load) > 0.25,
                "one agent": sum(crowd.agents for crowd in load.crowds) == 1,
                "many agents": sum(crowd.agents for crowd in load.crowds) > 50,
                "sub-agents": any(crowd.parent_session for crowd in load.crowds),
                "shared sessions": any(crowd.per_session > 1 for crowd in load.crowds),
                "prompt caches": any(crowd.caches for crowd in load.crowds),
                "streams": any(crowd.streamed for crowd in load.crowds),
                "slow answers": any(crowd.latency_s > 10 for crowd in load.crowds),
            }.items()
            if is_so
        )
    expected = {
        *((kind, dimension) for kind in LimitKind for dimension in Dimension),
        *(f"window of {window_s} s" for window_s in (5, 10, 20, 60, 120, 300, 600)),
        *(f"fault {name}" for name in ("502", "503", "529", "429", "429-retry-after", "reset-before-head", "hang")),
        *("fault body-cut", "fault error-first", *(f"fault {how}" for how in ODD_ENDS)),
        *("no headers", "no retry-after", "refusals count", "a hidden limit", "a cap", "a moving cap", "an outage"),
        *("a neighbour", "many faults", "many agents", "sub-agents", "shared sessions", "prompt caches", "streams"),
        *("slow answers", "one agent"),
    }
    assert {name for name in expected if seen[name] < 3} == set()


def test_every_client_has_the_patience_that_a_fair_order_needs():
    for load in LOADS:
        needed_s = patience_s(load)
        for crowd in load.crowds:
            assert 1.5 * needed_s <= crowd.timeout_s <= 4 * needed_s + 10, load.name
            assert crowd.timeout_s <= 3600


def test_every_call_fits_into_every_limit():
    for load in LOADS:
        for limit in load.provider.limits:
            for crowd in load.crowds:
                # A conversation's last call, whose prompt is all that was said.
                largest = crowd.shared_tokens + crowd.opening_tokens[1] + crowd.prompt_tokens[1]
                if crowd.remembers:
                    largest += (crowd.turns - 1) * (crowd.prompt_tokens[1] + crowd.output_tokens[1])
                most = {
                    Dimension.REQUESTS: 1,
                    Dimension.INPUT_TOKENS: largest,
                    Dimension.OUTPUT_TOKENS: crowd.output_tokens[1],
                    Dimension.TOTAL_TOKENS: largest + crowd.output_tokens[1],
                }
                assert most[limit.dimension] <= limit.amount, load.name


def test_no_run_takes_a_night():
    assert max(map(whole_s, LOADS)) <= 5400
    assert all(20 <= sum(crowd.agents * crowd.turns for crowd in load.crowds) <= 1500 for load in LOADS)


def test_what_no_patience_cures_is_not_drawn():
    for load in LOADS:
        provider = load.provider
        FaultMix(provider.faults)
        assert failing(load) <= 0.45
        if any(crowd.streamed for crowd in load.crowds):
            assert not provider.faults.keys() & {"body-cut", "body-reset", "stream-close"}, load.name
        if {"hang", "left-open"} & {*provider.faults}:
            assert all(crowd.streamed for crowd in load.crowds), load.name
        is_told = provider.rate_limit_headers and all(limit.told for limit in provider.limits)
        if not is_told and provider.retry_after is RetryAfter.MISSING:
            assert all(limit.window_s <= 60 for limit in provider.limits), load.name
            assert not provider.charge_failures, load.name


@each("number", range(10))
def test_more_of_everything_needs_more_patience(number):
    """The reckoning follows the load: half the limits, an outage more, or half the slots never need less."""
    load = LOADS[number]
    provider = load.provider
    needed_s = patience_s(load)
    limits = tuple(replace(limit, amount=max(1, limit.amount // 2)) for limit in provider.limits)
    assert patience_s(replace(load, provider=replace(provider, limits=limits))) >= needed_s
    slots = None if provider.concurrency is None else max(1, provider.concurrency // 2)
    assert patience_s(replace(load, provider=replace(provider, concurrency=slots))) >= needed_s
    many = tuple(replace(crowd, agents=2 * crowd.agents) for crowd in load.crowds)
    assert patience_s(replace(load, crowds=many)) >= needed_s


def test_a_load_runs():
    assert run(LOADS[3], seed=0) == run(LOADS[3], seed=0)


def test_a_scheduler_that_may_ask_the_provider_loses_nobody():
    """What is drawn can be served: with sizes known, and sent just when the provider has room."""
    lost = {load.name: result.lost for load in LOADS[:20] if (result := run_oracle(load, seed=0)).lost}
    assert lost == {}


# Odd ends -------------------------------------------------------------------------------------------------------------


ODDLY_ENDED = {
    (how, streamed): Scenario(
        "odd", (Crowd("agent", 3, 3, streamed=streamed, retries=1),), ProviderSettings(faults={how: 0.5})
    )
    for how, streamed in product(ODD_ENDS, (False, True))
}
CLOSED_EARLY = {"no-last-chunk", "half-terminal", "length-too-large"}


def paid_twice(policy=Policy.HIVEMIND):
    """The odd ends, of plain and streamed answers, that make a run pay for more answers than are delivered."""
    return {end for end, scenario in ODDLY_ENDED.items() if run(scenario, seed=0, policy=policy).paid_in_vain > 0}


@each("policy", [Policy.HIVEMIND, Policy.FIFO, Policy.AIMD_PAUSE, Policy.SDK, Policy.DIRECT])
def test_no_odd_end_is_paid_twice(policy):
    for scenario in ODDLY_ENDED.values():
        result = run(scenario, seed=0, policy=policy)
        assert (result.lost, result.attempts, result.turns_done, result.paid_in_vain) == (0, 9, 9, 0), scenario


@each(
    ("judge", "part", "broken", "plain", "streamed"),
    [
        (AnswerReader, "has_stopped", property(lambda _: False, lambda *_: None), set(), {"half-terminal"}),
        (AnswerInProgress, "heard", lambda *_: False, set(), {"other-label"}),
        # The client of a plain answer that is left open goes in the end.
        (AnswerInProgress, "is_complete", lambda *_: False, CLOSED_EARLY, {*CLOSED_EARLY, "left-open"}),
    ],
)
def test_a_judge_that_takes_whole_answers_for_cut_ones_is_caught(monkeypatch, judge, part, broken, plain, streamed):
    with monkeypatch.context() as patch:
        patch.setattr(judge, part, broken, raising=False)
        caught = paid_twice()
    assert caught == {*product(plain, (False,)), *product(streamed, (True,))}


def test_a_policy_that_sends_answered_calls_again_is_caught():
    class Doubter(Scheduler):
        def settle(self, attempt, result, now, **more):
            if attempt.number == 1:
                result = msgspec.structs.replace(result, outcome=judge_transport(TransportTrouble.CUT))
            return super().settle(attempt, result, now, **more)

    doubter = Policy("doubter", "sends every call twice", lambda rng: Doubter(rng=rng))
    assert paid_twice(doubter) == {*ODDLY_ENDED}
