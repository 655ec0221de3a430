"""Random loads: what they are, what the scheduler makes of them, and how they become smaller."""

from collections import Counter
from dataclasses import replace
from itertools import product

import msgspec

from hivemind_addon.formats.wire.answer import AnswerReader
from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_transport
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim import random_proof
from hivemind_addon.sim.expectation import Verdict
from hivemind_addon.sim.faults import ODD_ENDS, FaultMix
from hivemind_addon.sim.library import Case, random_case
from hivemind_addon.sim.limits import Limit, LimitKind, RetryAfter
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings
from hivemind_addon.sim.random_loads import is_feasible, number_in, patience_s, random_load, whole_s
from hivemind_addon.sim.random_proof import (
    POLICIES,
    LoadProof,
    Shortfall,
    is_behind,
    minimise,
    minimised,
    shortfalls,
)
from hivemind_addon.sim.workload import Crowd, Neighbour, Scenario
from hivemind_addon.sim.world import run
from lab.random_page import missed, prove, section
from tests.cases import each
from tests.sim.oracle import run_oracle
from tests.sim.test_result import RESULT_EXPECTATION

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


# Random proof ---------------------------------------------------------------------------------------------------------


def figures(lost=1, **more):
    crowds = {"agent": replace(RESULT_EXPECTATION.crowds["agent"], agents=50, lost=lost)}
    given = {"attempts": 200, "refused": 20, "idle_s": 20.0, "makespan_s": 105.0, "shared_bound_s": 105.0}
    return replace(RESULT_EXPECTATION, crowds=crowds, **{**given, **more})


GOOD = figures()
HOPELESS = Case(
    Scenario(
        "hopeless",
        (Crowd("agent", 6, 3, timeout_s=30), Crowd("more", 2, 4, timeout_s=500)),
        ProviderSettings(outages=(ProviderOutage(0, 60),)),
    ),
    "an outage that is longer than patience",
    as_stated=True,
)


@each(
    ("change", "told"),
    [
        ({}, []),
        ({"lost": 2}, [Shortfall.LOSES]),
        ({"refused": 21}, [Shortfall.REFUSED]),
        ({"idle_s": 20.1}, [Shortfall.IDLES]),
        ({"paid_in_vain": 1}, [Shortfall.PAID_TWICE]),
        ({"lost": 50, "refused": 200, "idle_s": 3600.0}, [Shortfall.LOSES, Shortfall.REFUSED, Shortfall.IDLES]),
        ({"refused": 25, "unforeseen": 5}, []),
        ({"refused": 26, "unforeseen": 5}, [Shortfall.REFUSED]),
        ({"attempts": 20, "refused": 5}, []),
        ({"attempts": 20, "refused": 6}, [Shortfall.REFUSED]),
    ],
)
def test_bounds_are_what_a_run_may_just_have(change, told):
    assert list(shortfalls(figures(**change))) == told


@each(
    ("change", "behind"),
    [
        ({"makespan_s": 100.0}, False),
        ({"makespan_s": 99.9}, True),
        ({"makespan_s": 50.0, "lost": 1}, True),
        ({"makespan_s": 50.0, "lost": 2}, False),
    ],
)
def test_who_loses_more_is_not_ahead(change, behind):
    assert is_behind(GOOD, figures(**change)) is behind


def proof_of(number, *shortfalls, **mine):
    runs = dict.fromkeys(POLICIES, GOOD) | {Policy.HIVEMIND: figures(**mine)}
    worse = [Verdict("time", 1.05, 2.0)] if Shortfall.WORSE in shortfalls else []
    return LoadProof(random_case(number), runs, shortfalls, tuple(worse))


def test_the_section_counts_each_policys_loads_and_lists_the_schedulers():
    proofs = [
        proof_of(0),
        proof_of(1, Shortfall.LOSES, Shortfall.BEHIND_FIFO, lost=9, makespan_s=300.0),
        proof_of(2, Shortfall.IDLES, Shortfall.WORSE, idle_s=77.0),
    ]
    text = section(proofs)
    assert "| hivemind | 11 of 150 | 1 | 0 | 1 | 0 |  |" in text
    assert "| fifo | 3 of 150 | 0 | 0 | 0 | 0 | 1 |" in text
    assert "| aimd-pause | 3 of 150 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "falls short in 2 of them" in text
    assert "| random-1 | loses > 2%, behind fifo | 9 of 50 | 20 of 200 | 20 | 300 (105, 105) | 2.86 |" in text
    assert "| random-0 |" not in text
    assert missed(proofs) == ["random-1: loses > 2%, behind fifo", "random-2: idle > 20 s, time: 2, expected ≤ 1.05"]


def test_where_it_never_falls_short_the_section_says_so():
    assert "falls short in none of them" in section([proof_of(0)])
    assert missed([proof_of(0)]) == []


def test_loads_run_under_every_policy_and_the_same_again():
    done = []
    proofs = prove([3, 7], done=done.append)
    assert [one.case.name for one in proofs] == ["random-3", "random-7"]
    assert all(set(one.runs) == set(POLICIES) for one in proofs)
    assert len(done) == 2 * len(POLICIES)
    assert prove([3, 7], workers=2) == proofs


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


@each("policy", POLICIES)
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


def test_a_lead_of_one_seed_alone_is_chance(monkeypatch):
    """Ahead in the first run, behind in the four others."""
    case = random_case(3)
    slow = {(Policy.HIVEMIND, 0), *((policy, seed) for policy in POLICIES[1:] for seed in range(1, 5))}

    def run(_, policy, seed):
        return figures(makespan_s=200.0 if (policy, seed) in slow else 100.0)

    monkeypatch.setattr(random_proof, "_run", run)
    assert not random_proof.falls_short(case, Shortfall.BEHIND_FIFO)
    slow = {(Policy.HIVEMIND, seed) for seed in range(5)}
    assert random_proof.falls_short(case, Shortfall.BEHIND_FIFO)


def test_a_case_that_falls_short_is_minimised():
    smallest = minimised(HOPELESS)
    assert smallest is not None
    (crowd,) = smallest.scenario.crowds
    assert (crowd.name, crowd.agents, crowd.turns) == ("agent", 1, 1)
    assert smallest.about == "Minimised from hopeless: loses > 2%."
    assert smallest.as_stated


def test_what_falls_short_in_nothing_is_not():
    served = replace(HOPELESS, scenario=replace(HOPELESS.scenario, provider=ProviderSettings()))
    assert minimised(served) is None


def test_a_feasible_case_stays_feasible(monkeypatch):
    """Whatever fails here is only gone on with while a good scheduler could serve it."""
    case = random_case(4)
    assert is_feasible(case.scenario)
    monkeypatch.setattr(random_proof, "falls_short", lambda *_: True)
    smallest = minimised(case)
    assert smallest is not None
    assert is_feasible(smallest.scenario)


# Minimise -------------------------------------------------------------------------------------------------------------


REQUESTS, INPUT = Limit(Dimension.REQUESTS, 20), Limit(Dimension.INPUT_TOKENS, 9000)
LARGE = Scenario(
    "large",
    (
        Crowd("first", 40, 9, per_session=2, latency_sigma=0.5, think_s=(1, 3), streamed=True),
        Crowd("second", 23, 17, parent_session="first-0", caches=True, shared_tokens=500),
    ),
    ProviderSettings(
        limits=(REQUESTS, INPUT),
        concurrency=7,
        concurrency_status=503,
        charge_failures=True,
        rate_limit_headers=False,
        faults={"502": 0.1, "429": 0.1},
        outages=(ProviderOutage(5, 10), ProviderOutage(20, 30)),
    ),
    caps=((5, 3),),
    neighbours=(Neighbour(0.5),),
    input_error=0.3,
)


def test_a_planted_failure_is_left_with_what_it_needs():
    """It needs five agents of the second crowd, three turns, the second limit and the fault 429."""

    def fails(scenario):
        return (
            any(crowd.name == "second" and crowd.agents >= 5 and crowd.turns >= 3 for crowd in scenario.crowds)
            and INPUT in scenario.provider.limits
            and "429" in scenario.provider.faults
        )

    assert fails(LARGE)
    assert minimise(LARGE, fails) == Scenario(
        "large",
        (Crowd("second", 5, 3, think_s=(0.1, 0.1), latency_sigma=0, remembers=False),),
        ProviderSettings(limits=(INPUT,), faults={"429": 0.1}),
    )


def test_what_fails_always_is_left_with_nothing():
    smallest = minimise(LARGE, lambda _: True)
    (crowd,) = smallest.crowds
    assert (crowd.agents, crowd.turns, crowd.streamed, crowd.parent_session) == (1, 1, False, "")
    assert smallest.provider == ProviderSettings()
    assert (smallest.caps, smallest.neighbours, smallest.input_error) == ((), (), 0)


def test_what_cannot_be_made_smaller_stays():
    assert minimise(LARGE, lambda _: False) is LARGE
    load = random_case(5).scenario
    assert minimise(load, lambda scenario: scenario == load) == load


def test_caps_move_only_where_there_is_one():
    assert minimise(LARGE, lambda scenario: scenario.provider.concurrency is None or bool(scenario.caps)).caps == ()
