"""Random loads: what they are, and that no odd end of an answer is paid twice."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import msgspec
import yaml

from hivemind_addon.formats.wire.answer import AnswerReader
from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_transport
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.faults import ODD_ENDS
from hivemind_addon.sim.library import Case, written
from hivemind_addon.sim.limits import LimitKind, LimitReport, RetryAfter
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.random_loads import KINDS, number_in, patience_s, random_load, whole_s
from hivemind_addon.sim.workload import Crowd, Scenario
from hivemind_addon.sim.world import run
from tests.cases import each
from tests.sim.oracle import run_oracle

LOADS = [random_load(number) for number in range(500)]


def test_a_number_is_one_load_for_ever():
    assert [random_load(number) for number in range(20)] == LOADS[:20]
    assert len({repr((load.crowds, load.provider)) for load in LOADS}) == len(LOADS)


def test_its_name_holds_its_number():
    assert [number_in(load.name) for load in LOADS] == list(range(500))
    assert number_in("random-") is None
    assert number_in("micro-5") is None


def said(load):
    """Every key that the load's file says, and each of its words."""
    file = yaml.safe_load(written(Case(load, "")))
    for part, below in [
        ("", file),
        *(("crowd", one) for one in file["crowds"]),
        ("", file["provider"]),
        *(("neighbour", one) for one in file.get("neighbours", ())),
        *(("other", one) for one in file.get("others", {}).values()),
        *(("limit", one) for one in file["provider"].get("limits", ())),
        *(("report", one["reports"]) for one in file["provider"].get("limits", ()) if "reports" in one),
    ]:
        for key, value in below.items():
            yield f"{part} {key}".strip()
            yield from [f"{part} {key} {value}".strip()] if isinstance(value, str) else []
    yield from file["provider"].get("faults", ())
    yield from ((limit.kind, limit.dimension) for limit in load.provider.limits)


def test_all_kinds_of_everything_occur():
    """Of each at least three in 500; what hardly occurs proves nothing."""
    seen = Counter(word for load in LOADS for word in set(said(load)))
    expected = {
        *product(LimitKind, Dimension),
        *(f"limit windows {kind}" for kind in KINDS["windows"] if kind != "beat"),
        *(f"retry_after {kind}" for kind in KINDS["retry-after"] if kind != "rounded-up"),
        *(server for server in KINDS["server"] if server != "any number"),
        *(f"limit scope {scope}" for scope in ("user", "model", "family")),
        *(f"limit {key}" for key in ("burst", "growth", "changes", "counts_refusals", "told", "plan 5h", "plan 7d")),
        *(f"report {key}" for key in ("amount", "age_s", "on_refusals")),
        *(f"neighbour {key}" for key in ("from_s", "every_s", "waits")),
        *(f"crowd {key}" for key in ("calls_per_turn", "max_tokens", "refused", "parent_session", "hours", "model")),
        *(f"crowd {key}" for key in ("caches", "streamed", "site", "per_session")),
        *("other equal", "other dialect openai-chat", "outages", "storms", "caps", "duration_s", "scheduler", "ban"),
        *("linger_s", "works_on", "clock_s", "dates", "charge_failures", "rate_limit_headers", "concurrency"),
        *("concurrency_scope", "families", "load_s", "way_jitter_s", "input_error"),
        *("502", "503", "529", "429", "429-retry-after", "reset-before-head", "hang", "body-cut", "error-first"),
        *ODD_ENDS,
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
            for crowd in (crowd for crowd in load.crowds if not crowd.site):
                # A conversation's last call, whose prompt is all that was said.
                out, grown = max(crowd.output_tokens), max(crowd.calls_per_turn) * (crowd.turns - 1) * crowd.remembers
                largest = crowd.shared_tokens + max(crowd.opening_tokens) + max(crowd.prompt_tokens)
                largest += grown * (max(crowd.prompt_tokens) + out)
                most = {
                    Dimension.REQUESTS: 1,
                    Dimension.INPUT_TOKENS: largest,
                    Dimension.OUTPUT_TOKENS: crowd.max_tokens or out,
                    Dimension.TOTAL_TOKENS: largest + (crowd.max_tokens or out),
                }
                least = min((limit.amount, limit.burst or limit.amount, *(one.amount for one in limit.changes)))
                assert most[limit.dimension] <= least, load.name


def test_no_run_takes_a_night():
    for load in LOADS:
        assert whole_s(load) <= (86_400 if load.duration_s < math.inf else 5400), load.name
        calls = sum(
            crowd.agents * crowd.turns * sum(crowd.calls_per_turn) / len(crowd.calls_per_turn) for crowd in load.crowds
        )
        assert 20 <= calls <= 1500, load.name


def test_what_no_patience_cures_is_not_drawn():
    for load in LOADS:
        sites = {"": load.provider} | {site.name: site.provider for site in load.sites}
        for name, provider in sites.items():
            crowds = [crowd for crowd in load.crowds if crowd.site == name] or load.crowds
            for mix in (provider.faults, *(storm.faults for storm in provider.storms)):
                assert sum(share for fault, share in mix.items() if fault not in ODD_ENDS) <= 0.45
                if any(crowd.streamed for crowd in crowds):
                    assert not mix.keys() & {"body-cut", "body-reset", "stream-close"}, load.name
                if {"hang", "left-open"} & {*mix}:
                    assert all(crowd.streamed for crowd in crowds), load.name
                if "hang" in mix:
                    assert not any((provider.works_on, provider.serves_at_once, provider.models_loaded)), load.name
            is_told = provider.rate_limit_headers and not provider.clock_s
            is_told = is_told and all(limit.told and limit.reports == LimitReport() for limit in provider.limits)
            if not is_told and provider.retry_after is RetryAfter.MISSING:
                assert all(limit.window_s <= 60 and not limit.counts_refusals for limit in provider.limits), load.name
                assert not provider.charge_failures, load.name
                assert provider.ban is None


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
