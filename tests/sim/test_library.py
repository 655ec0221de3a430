"""Scenario files: what they say is what runs, and what is wrong with one is told in a line."""

from pathlib import Path

import pytest

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim import library
from hivemind_addon.lab.sim.library import UnknownScenario, case_named, cases, random_case, read_case
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.policy import Policy
from hivemind_addon.lab.sim.world import run
from hivemind_addon.system.typed import DocumentError
from tests.cases import over

GOOD = """\
about: three agents
crowds: [{name: agent, agents: 3, turns: 2, think_s: [0, 1]}]
provider: {limits: [{dimension: requests, amount: 60}]}
"""


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> Path:
        file = tmp_path / "mine.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_a_file_of_ones_own_runs(written):
    case = case_named(str(written(GOOD)))
    assert (case.name, case.about, case.expect) == ("mine", "three agents", ())
    assert run(case.scenario, seed=0).lost == 0
    assert [limit.dimension for limit in case.scenario.provider.limits] == [Dimension.REQUESTS]


def test_the_schedulers_settings_are_those_of_the_file(written):
    text = GOOD + "scheduler: {concurrency: {initial: 1, maximum: 1}}\n"
    slow = read_case(written(text.replace("turns: 2", "turns: 2, latency_s: 10"))).scenario
    result = run(slow, seed=0)
    assert result.makespan_s > 50
    assert run(slow, seed=0, policy=Policy.DIRECT).makespan_s < 30


def test_several_providers_have_pools_of_their_own():
    case = cases()["mixed-providers"]
    assert case.kinds == (None,)
    (site,) = case.scenario.sites
    assert (site.name, site.profile) == ("openai", "openai")
    assert {limit.kind for limit in (*case.scenario.provider.limits, *site.provider.limits)} == set(LimitKind)


def test_a_case_says_what_it_is_run_on():
    assert cases()["stress"].kinds == tuple(LimitKind)
    assert cases()["stress"].has_headers_and_not == (True, False)
    assert cases()["changing-cap"].kinds == (None,)
    blind = cases()["stress"].at(LimitKind.WINDOW, headers=False)
    assert blind.provider.rate_limit_headers is False
    assert {limit.kind for limit in blind.provider.limits} == {LimitKind.WINDOW}


def test_the_papers_come_first():
    papers = [case.paper for case in cases().values()]
    assert papers == sorted(papers, reverse=True)


def test_a_random_load_has_a_name_like_any_other():
    case = case_named("random-17")
    assert case == random_case(17)
    assert case.name == "random-17"
    assert case.kinds == (None,)
    with pytest.raises(UnknownScenario):
        case_named("random-x")


@over("case", [*cases().values(), *map(random_case, range(50))])
def test_a_case_that_is_written_is_read_as_the_same(case, tmp_path):
    file = tmp_path / f"{case.name}.yaml"
    file.write_text(library.written(case), encoding="utf-8")
    again = read_case(file)
    assert again == case


def test_an_unknown_name_is_told_with_those_that_there_are():
    with pytest.raises(UnknownScenario, match=r"no scenario 'nonsense'; there are micro-5, .* or give the path"):
        case_named("nonsense")


@over(
    ("change", "told"),
    [
        (("agents: 3", "agnets: 3"), "crowds[0].agnets: unknown key; did you mean agents?"),
        (("agents: 3", "agents: 0"), "crowds[0].agents: 0 is not above zero; write a positive number"),
        (("agents: 3", "agents: many"), "crowds[0].agents: expected a whole number, got 'many'"),
        (("[0, 1]", "[1, 0]"), "crowds[0].think_s: [1, 0] is no range; write its two ends"),
        (("[0, 1]", "[1, 2, 3]"), "crowds[0].think_s: [1, 2, 3] is no range"),
        (("[0, 1]", "1"), "crowds[0].think_s: expected a list, got 1"),
        (("turns: 2, ", ""), "crowds[0].turns: it never ends; say turns, or duration_s"),
        (("dimension: requests", "dimension: calls"), "provider.limits[0].dimension: 'calls' is not known here"),
        (("amount: 60", "amount: -1"), "provider.limits[0].amount: -1 is negative"),
        (("about: three agents\n", ""), "about is missing; add about"),
        (
            ("crowds: [{name: agent, agents: 3, turns: 2, think_s: [0, 1]}]", "crowds: []"),
            "crowds: nobody asks anything",
        ),
        (
            ("agents: 3", "agents: 3, site: moon"),
            "crowds[0].site: no provider moon; name one of others: there are none",
        ),
        (("provider: {", "provider: {interval_s: 1, "), "provider.interval_s: unknown key"),
        (("provider: {", "provider: {faults: {oops: 0.1}, "), "provider.faults.oops: no fault 'oops'; name one of"),
        (("provider: {", "provider: {faults: {'502': 2}, "), "provider.faults.502: 2 is above 1; write a share"),
        (
            ("provider: {", "provider: {faults: {'502': 0.6, '500': 0.6}, "),
            "provider.faults: fault rates must not be negative, and 1 at most in all",
        ),
        (("provider: {", "provider: {walls: [{from_s: 9, to_s: 3}], "), "provider.walls[0]: it ends at 3 s, before"),
        (("provider: {", "provider: {families: [[a, b], [b]], "), "provider.families: b is of two families; name each"),
        (
            ("requests, amount", "requests, scope: world, amount"),
            "limits[0].scope: 'world' is not known here; write one",
        ),
        (
            ("provider: {", "provider: {storms: [{from_s: 9, to_s: 3, faults: {}}], "),
            "provider.storms[0]: it ends at 3 s, before",
        ),
        (
            ("provider: {", "provider: {storms: [{from_s: 0, to_s: 3, faults: {'502': 0.6, '500': 0.6}}], "),
            "provider.storms[0].faults: fault rates must not be negative, and 1 at most in all",
        ),
        (("turns: 2", "turns: 2}, {name: agent, agents: 1, turns: 1"), "crowds[1].name: agent stands twice"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_file_key_and_cure(written, change, told):
    assert change[0] in GOOD
    file = written(GOOD.replace(*change))
    with pytest.raises(DocumentError) as error:
        read_case(file)
    assert str(error.value).startswith(f"{file}: ")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@over(
    ("more", "told"),
    [
        ("expect: [{wait_p95_s: {nobody: 5}}]", "expect[0]: no crowd nobody; name one of agent"),
        ("expect: [{lost: 3}]", "expect[0].lost: 3 is above 1"),
        ("others: {x: {profile: nope, provider: {}}}", "others.x.profile: no profile nope; name one of anthropic"),
        ("caps: [{at_s: 5, concurrency: 0}]", "caps[0].concurrency: 0 is not above zero"),
        ("scheduler: {breaker: {max_probe_s: 0}}", "scheduler.breaker.max_probe_s: 0 is not above zero"),
    ],
)
def test_so_is_what_is_wrong_further_down(written, more, told):
    with pytest.raises(DocumentError) as error:
        read_case(written(GOOD + more + "\n"))
    assert told in str(error.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DocumentError, match=r"gone.yaml: cannot be read: No such file"):
        case_named(str(tmp_path / "gone.yaml"))
