"""What is told of random loads: who falls short, in what, and beside whom."""

from dataclasses import replace

from hivemind_addon.lab.sim import random_proof
from hivemind_addon.lab.sim.library import Case, random_case
from hivemind_addon.lab.sim.policy import Policy
from hivemind_addon.lab.sim.provider import ProviderSettings, ProviderWall
from hivemind_addon.lab.sim.random_loads import is_feasible
from hivemind_addon.lab.sim.random_proof import POLICIES, LoadFigures, LoadProof, Shortfall, minimised, missed, section
from hivemind_addon.lab.sim.workload import Crowd, Scenario
from tests.cases import over

GOOD = LoadFigures(
    agents=50, lost=1, attempts=200, refused=20, unforeseen=0, idle_s=20.0, makespan_s=105.0, stretch=1.0
)
HOPELESS = Case(
    Scenario(
        "hopeless",
        (Crowd("agent", 6, 3, timeout_s=30), Crowd("more", 2, 4, timeout_s=500)),
        ProviderSettings(walls=(ProviderWall(0, 60),)),
    ),
    "an outage that is longer than patience",
    as_stated=True,
)


@over(
    ("change", "told"),
    [
        ({}, []),
        ({"lost": 2}, [Shortfall.LOSES]),
        ({"refused": 21}, [Shortfall.REFUSED]),
        ({"idle_s": 20.1}, [Shortfall.IDLES]),
        ({"lost": 50, "refused": 200, "idle_s": 3600.0}, [Shortfall.LOSES, Shortfall.REFUSED, Shortfall.IDLES]),
        ({"refused": 25, "unforeseen": 5}, []),
        ({"refused": 26, "unforeseen": 5}, [Shortfall.REFUSED]),
        ({"attempts": 20, "refused": 5}, []),
        ({"attempts": 20, "refused": 6}, [Shortfall.REFUSED]),
    ],
)
def test_bounds_are_what_a_run_may_just_have(change, told):
    assert list(replace(GOOD, **change).shortfalls()) == told


@over(
    ("change", "is_behind"),
    [
        ({"makespan_s": 100.0}, False),
        ({"makespan_s": 99.9}, True),
        ({"makespan_s": 50.0, "lost": 1}, True),
        ({"makespan_s": 50.0, "lost": 2}, False),
    ],
)
def test_who_loses_more_is_not_ahead(change, is_behind):
    assert GOOD.is_behind(replace(GOOD, **change)) is is_behind


def proof_of(number, *shortfalls, **mine):
    runs = dict.fromkeys(POLICIES, GOOD) | {Policy.HIVEMIND: replace(GOOD, **mine)}
    return LoadProof(random_case(number), runs, shortfalls)


def test_the_section_counts_each_policys_loads_and_lists_the_schedulers():
    proofs = [
        proof_of(0),
        proof_of(1, Shortfall.LOSES, Shortfall.BEHIND_FIFO, lost=9, makespan_s=300.0),
        proof_of(2, Shortfall.IDLES, idle_s=77.0),
    ]
    text = section(proofs)
    assert "| hivemind | 11 of 150 | 1 | 0 | 1 |  |" in text
    assert "| fifo | 3 of 150 | 0 | 0 | 0 | 1 |" in text
    assert "| aimd-pause | 3 of 150 | 0 | 0 | 0 | 0 |" in text
    assert "falls short in 2 of them" in text
    assert "| random-1 | loses > 2%, behind fifo | 9 of 50 | 20 of 200 | 20 | 300 (105, 105) | 1.00 |" in text
    assert "| random-0 |" not in text
    assert missed(proofs) == ["random-1: loses > 2%, behind fifo", "random-2: idle > 20 s"]


def test_where_it_never_falls_short_the_section_says_so():
    assert "falls short in none of them" in section([proof_of(0)])
    assert missed([proof_of(0)]) == []


def test_loads_run_under_every_policy_and_the_same_again():
    done = []
    proofs = random_proof.prove([3, 7], done=done.append)
    assert [one.case.name for one in proofs] == ["random-3", "random-7"]
    assert all(set(one.runs) == set(POLICIES) for one in proofs)
    assert len(done) == 2 * len(POLICIES)
    assert random_proof.prove([3, 7], workers=2) == proofs


def test_a_lead_of_one_seed_alone_is_chance(monkeypatch):
    """Ahead in the first run, behind in the four others."""
    case = random_case(3)
    slow = {(Policy.HIVEMIND, 0), *((policy, seed) for policy in POLICIES[1:] for seed in range(1, 5))}

    def run(_, policy, seed):
        return replace(GOOD, makespan_s=200.0 if (policy, seed) in slow else 100.0)

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
