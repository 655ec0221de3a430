"""The minimiser: what is not needed for a failure goes, what is needed stays."""

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.library import random_case
from hivemind_addon.lab.sim.limits import Limit
from hivemind_addon.lab.sim.provider import ProviderSettings, ProviderWall
from hivemind_addon.lab.sim.random_proof import minimise
from hivemind_addon.lab.sim.workload import Crowd, Neighbour, Scenario

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
        walls=(ProviderWall(5, 10), ProviderWall(20, 30)),
    ),
    caps=((5, 3),),
    neighbour=Neighbour(0.5),
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
    assert (smallest.caps, smallest.neighbour, smallest.input_error) == ((), None, 0)


def test_what_cannot_be_made_smaller_stays():
    assert minimise(LARGE, lambda _: False) is LARGE
    load = random_case(5).scenario
    assert minimise(load, lambda scenario: scenario == load) == load


def test_caps_move_only_where_there_is_one():
    assert minimise(LARGE, lambda scenario: scenario.provider.concurrency is None or bool(scenario.caps)).caps == ()
