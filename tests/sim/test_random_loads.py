"""Random loads: the same number is the same load, and every one can be served."""

from collections import Counter
from dataclasses import replace

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.faults import FaultMix
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.random_loads import number_in, patience_s, random_load, whole_s
from hivemind_addon.lab.sim.world import run
from tests.cases import over
from tests.sim.oracle import run_oracle

LOADS = [random_load(number).scenario for number in range(300)]


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
                "no retry-after": not provider.retry_after,
                "refusals count": provider.charge_failures,
                "a hidden limit": any(not limit.told for limit in provider.limits),
                "a cap": provider.concurrency is not None,
                "a moving cap": bool(load.caps),
                "an outage": bool(provider.walls),
                "a neighbour": load.neighbour is not None,
                "many faults": sum(provider.faults.values()) > 0.25,
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
        *("fault body-cut", "fault error-first"),
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
        assert sum(provider.faults.values()) <= 0.45
        if any(crowd.streamed for crowd in load.crowds):
            assert not provider.faults.keys() & {"body-cut", "body-reset", "stream-close"}, load.name
        if "hang" in provider.faults:
            assert all(crowd.streamed for crowd in load.crowds), load.name
        is_told = provider.rate_limit_headers and all(limit.told for limit in provider.limits)
        if not is_told and not provider.retry_after:
            assert all(limit.window_s <= 60 for limit in provider.limits), load.name
            assert not provider.charge_failures, load.name


@over("number", range(10))
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
    lost = {load.name: result.lost for load in LOADS[:50] if (result := run_oracle(load, seed=0)).lost}
    assert lost == {}
