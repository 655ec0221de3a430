"""Cases that miss an expectation, made smaller."""

from dataclasses import replace

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.expectation import Expectation
from hivemind_addon.sim.library import Case, random_case
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.minimise import minimise, minimised
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings
from hivemind_addon.sim.random_loads import is_feasible
from hivemind_addon.sim.trial import Setup, run_series
from hivemind_addon.sim.workload import Crowd, Neighbour, Scenario

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
        (Crowd("second", 5, 3, latency_sigma=0, remembers=False),),
        ProviderSettings(limits=(INPUT,), faults={"429": 0.1}, concurrency_status=503),
    )


def test_what_fails_always_is_left_with_nothing():
    smallest = minimise(LARGE, lambda _: True)
    (crowd,) = smallest.crowds
    assert (crowd.agents, crowd.turns, crowd.streamed, crowd.parent_session) == (1, 1, False, "")
    assert smallest.provider == ProviderSettings(concurrency_status=503)
    assert (smallest.caps, smallest.neighbours, smallest.input_error) == ((), (), 0)


def test_what_cannot_be_made_smaller_stays():
    assert minimise(LARGE, lambda _: False) is LARGE
    load = random_case(5).scenario
    assert minimise(load, lambda scenario: scenario == load) == load


def test_caps_move_only_where_there_is_one():
    assert minimise(LARGE, lambda scenario: scenario.provider.concurrency is None or bool(scenario.caps)).caps == ()


HOPELESS = Case(
    Scenario(
        "hopeless",
        (Crowd("agent", 6, 3, timeout_s=30), Crowd("more", 2, 4, timeout_s=500)),
        ProviderSettings(outages=(ProviderOutage(0, 60),), limits=(Limit(Dimension.REQUESTS, 600),)),
    ),
    "an outage that is longer than patience",
    expect=(Expectation(headers=False, lost=0.02, wait_p95_s={"agent": 900}), Expectation(lost=1)),
)


def missed_by(setup, seed):
    (series,) = run_series([setup], [Policy.HIVEMIND], [seed])
    return [verdict for verdict in series.verdicts() if not verdict.is_met]


def test_a_missed_expectation_stays_missed_by_the_smaller_case_as_it_is_stated():
    (verdict,) = missed_by(Setup(HOPELESS, LimitKind.WINDOW, headers=False), 3)
    smallest = minimised(Setup(HOPELESS, LimitKind.WINDOW, headers=False), 3, verdict)
    (crowd,) = smallest.scenario.crowds
    assert (crowd.name, crowd.agents, crowd.turns) == ("agent", 1, 1), "what the expectation names stays"
    assert smallest.scenario.provider.limits == ()
    assert smallest.about == "Minimised from hopeless, seed 3: agents lost, expected ≤ 0.02."
    (again,) = missed_by(Setup(smallest), 3)
    assert again.what == "agents lost"
    assert minimised(Setup(HOPELESS, LimitKind.WINDOW), 3, verdict) is None, "with headers nothing is missed"


def test_a_feasible_case_stays_feasible_and_tries_are_counted():
    """Whatever is missed here goes on only while a good scheduler could serve the case."""
    case = replace(random_case(4), expect=(Expectation(stretch_worst=0.01),))
    (verdict,) = missed_by(Setup(case), 0)
    tried = minimised(Setup(case), 0, verdict, tries=6)
    assert is_feasible(tried.scenario)
    assert minimised(Setup(case), 0, verdict, tries=1).scenario == case.scenario
