"""Scenarios by name: their files, their runs, and what people see of these."""

import math
import random
from itertools import islice
from pathlib import Path

import pytest

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim import library
from hivemind_addon.sim.library import UnknownScenario, case_named, cases, random_case, read_cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.workload import Crowd, turns
from hivemind_addon.sim.world import run
from tests.cases import each

GOOD = """\
about: three agents
crowds: [{name: agent, agents: 3, turns: 2, think_s: [0, 1]}]
provider: {limits: [{dimension: requests, amount: 60}]}
"""


def only_case(file):
    """Of a file without variants."""
    return read_cases(file)[""]


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
    slow = only_case(written(text.replace("turns: 2", "turns: 2, latency_s: 10"))).scenario
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


@each("case", [*cases().values(), *[*library.variants().values()][::9], *map(random_case, range(50))])
def test_a_case_that_is_written_is_read_as_the_same(case, tmp_path):
    file = tmp_path / f"{case.name}.yaml"
    file.write_text(library.written(case), encoding="utf-8")
    again = only_case(file)
    assert again == case


def test_an_unknown_name_is_told_with_those_that_there_are():
    with pytest.raises(UnknownScenario, match=r"no scenario 'nonsense'; there are micro-5, .* or give the path"):
        case_named("nonsense")


@each(
    ("change", "told"),
    [
        (("agents: 3", "agnets: 3"), "crowds[0].agnets: unknown key; did you mean agents?"),
        (("agents: 3", "agents: 0"), "crowds[0].agents: 0 is not above zero; write a positive number"),
        (("agents: 3", "agents: many"), "crowds[0].agents: expected a whole number, got 'many'"),
        (("[0, 1]", "[1, 0]"), "crowds[0].think_s: [1, 0] is no range; write its two ends"),
        (("[0, 1]", "[]"), "crowds[0].think_s: there is no value; write one, the two ends of a range, or more"),
        (("[0, 1]", "1"), "crowds[0].think_s: expected a list, got 1"),
        (("turns: 2, ", ""), "crowds[0].turns: it never ends; say turns, or duration_s"),
        (("turns: 2", "calls_per_turn: [0]"), "crowds[0].calls_per_turn[0]: 0 is not above zero"),
        (("turns: 2", "turns: 2, hours: [9, 17]"), "crowds[0].hours: it begins anew each day, and never ends; say dur"),
        (("turns: 2", "turns: 2, hours: [17, 9]"), "crowds[0].hours: [17, 9] is no range"),
        (
            ("turns: 2", "turns: 2, max_tokens: 49"),
            "crowds[0].max_tokens: answers have up to 50 output tokens; write 50",
        ),
        (("turns: 2", "turns: 2, refused: {share: 2}"), "crowds[0].refused.share: 2 is above 1; write a share"),
        (("turns: 2", "turns: 2, refused: {status: 200}"), "crowds[0].refused.status: 200 is no status of a refusal"),
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
        (
            ("provider: {", "provider: {outages: [{from_s: 9, to_s: 3}], "),
            "provider.outages[0]: it ends at 3 s, before",
        ),
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
        (("turns: 2", "turns: 2, priority: urgent"), "crowds[0].priority: 'urgent' is not known here; write one of"),
        (("turns: 2", "turns: 2, budget_tokens: 0"), "crowds[0].budget_tokens: 0 is not above zero"),
        (("provider: {", "provider: {hang_s: 0, "), "provider.hang_s: 0 is not above zero"),
        (
            ("provider: {", "provider: {fault_course: {points: []}, "),
            "provider.fault_course.points: there are none; give two at least",
        ),
        (
            ("provider: {", "provider: {fault_course: {points: [{at_s: 5, faults: {}}, {at_s: 5, faults: {}}]}, "),
            "provider.fault_course.points[1].at_s: 5 s is not after the point before it, at 5 s; write the points",
        ),
        (
            ("provider: {", "provider: {fault_course: {points: [{at_s: 0, faults: {}}], repeats: true}, "),
            "provider.fault_course.repeats: it lasts no time; give a second point",
        ),
        (
            ("provider: {", "provider: {fault_course: {points: [{at_s: 0, faults: {'502': 0.6, hang: 0.6}}]}, "),
            "provider.fault_course.points[0].faults: fault rates must not be negative, and 1 at most in all",
        ),
        (
            ("provider: {", "provider: {faults: {hang: 0.1}, fault_course: {points: [{at_s: 0, faults: {}}]}, "),
            "provider.faults: fault_course stands in its place; leave one out",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_file_key_and_cure(written, change, told):
    assert change[0] in GOOD
    file = written(GOOD.replace(*change))
    with pytest.raises(DocumentError) as error:
        only_case(file)
    assert str(error.value).startswith(f"{file}: ")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@each(
    ("more", "told"),
    [
        ("expect: [{wait_p95_s: {nobody: 5}}]", "expect[0]: no crowd nobody; name one of agent"),
        ("expect: [{lost: 3}]", "expect[0].lost: 3 is above 1"),
        ("expect: [{to_no_proxy: 0}]", "expect[0].to_no_proxy: 0 is not above zero"),
        ("neighbour: {calls_per_s: 1}", "neighbour: unknown key; did you mean neighbours?"),
        ("neighbours: [{calls_per_s: 0}]", "neighbours[0].calls_per_s: 0 is not above zero"),
        ("neighbours: [{calls_per_s: 1, site: moon}]", "neighbours[0].site: no provider moon; name one of others"),
        (
            "neighbours: [{calls_per_s: 1, from_s: 9, to_s: 9}]",
            "neighbours[0].to_s: it goes at 9 s, before it comes; let to_s be later than from_s",
        ),
        ("duration_s: 9\nway_jitter_s: -1", "way_jitter_s: -1 is negative"),
        ("others: {x: {profile: nope, provider: {}}}", "others.x.profile: no profile nope; name one of anthropic"),
        ("caps: [{at_s: 5, concurrency: 0}]", "caps[0].concurrency: 0 is not above zero"),
        ("scheduler: {breaker: {max_probe_s: 0}}", "scheduler.breaker.max_probe_s: 0 is not above zero"),
    ],
)
def test_so_is_what_is_wrong_further_down(written, more, told):
    with pytest.raises(DocumentError) as error:
        only_case(written(GOOD + more + "\n"))
    assert told in str(error.value)


VARIANTS = (
    GOOD
    + """\
expect: [{lost: 0}]
variants:
  two: {crowds: [{name: agent, agents: 2, turns: 2}]}
  few.tokens: {about: fewer, provider: {concurrency: 1, limits: [{dimension: input_tokens, amount: 9000}]}, expect: []}
  none: {provider: {}}
"""
)


def test_variants_change_what_they_name_and_nothing_else(written):
    file = written(VARIANTS)
    two, few, none = library.cases_named([str(file)])
    assert [case.name for case in (two, few, none)] == ["mine:two", "mine:few.tokens", "mine:none"]
    assert [case.agents for case in (two, few, none)] == [2, 3, 3]
    assert few.scenario.provider.concurrency == 1
    assert [limit.dimension for limit in few.scenario.provider.limits] == [Dimension.INPUT_TOKENS]
    assert none.scenario.provider == two.scenario.provider
    assert [len(case.expect) for case in (two, few, none)] == [1, 0, 1]
    assert [case.about for case in (two, few)] == ["three agents", "fewer"]
    assert case_named(f"{file}:two") == two
    assert run(few.scenario, seed=0).lost == 0


@each(
    ("change", "told"),
    [
        (("agents: 2", "agnets: 2"), "variants.two.crowds[0].agnets: unknown key; did you mean agents?"),
        (("concurrency: 1", "concurrency: 0"), "variants.few.tokens.provider.concurrency: 0 is not above zero"),
        (("about: fewer", "abuot: fewer"), "variants.few.tokens.abuot: unknown key; did you mean about?"),
        (
            ("amount: 9000", "amount: 9000, burst: 1, kind: window"),
            "variants.few.tokens.provider.limits[0].burst: only a",
        ),
        (("amount: 60", "amount: -60"), "mine.yaml: provider.limits[0].amount: -60 is negative"),
        (("{provider: {}}", "nothing"), "variants.none: it changes nothing; write the keys that it changes"),
        (("variants:", "variants: {}\nothers:"), "variants: there are none; write names"),
        (
            ("amount: 9000", "amount: 9, plan: 6h"),
            "limits[0].plan: no plan of anthropic-messages has '6h'; name one of 5h",
        ),
        (
            (
                "{provider: {}}",
                "{others: {x: {profile: codex, dialect: openai-chat, provider: {limits: [{dimension: requests, amount: 9, plan: 5h}]}}}}",
            ),
            "variants.none.others.x.provider.limits[0].plan: no plan of openai-chat has '5h'; leave plan out",
        ),
        (("amount: 9000", "amount: 9, growth: 2, left: 3"), "few.tokens.provider.limits[0].left: a log begins empty"),
        (("amount: 9000", "amount: 9, windows: log"), "provider.limits[0].windows: only a limit of windows has them"),
        (
            ("amount: 9000", "amount: 9, windows: lag"),
            "provider.limits[0].windows: 'lag' is not known here; write one of",
        ),
        (
            ("concurrency: 1", "retry_after: false"),
            "few.tokens.provider.retry_after: False is not known here; write one",
        ),
    ],
)
def test_what_is_wrong_with_a_variant_names_it(written, change, told):
    assert change[0] in VARIANTS
    with pytest.raises(DocumentError) as error:
        read_cases(written(VARIANTS.replace(*change)))
    assert told in str(error.value)


@each(
    ("name", "told"),
    [
        ("{file}:three", "mine.yaml has no variant 'three'; there are two, "),
        ("{file}", "mine.yaml has 3 variants; name one of them: mine:two …"),
        ("zoo:window-61s", "zoo has no variant 'window-61s'; there are window-"),
        ("zoo", "zoo has 155 variants; name one of them: zoo:window-1s …"),
        ("micro-5:x", "micro-5 has no variants; leave :x out"),
        ("nonsense:x", "no scenario 'nonsense:x'; there are micro-5, "),
    ],
)
def test_an_unknown_variant_is_told_with_those_that_there_are(written, name, told):
    with pytest.raises(UnknownScenario) as error:
        case_named(name.format(file=written(VARIANTS)))
    assert told in str(error.value)


def test_the_packaged_variants_are_no_plain_cases():
    assert library.variants()["zoo:gcra"] == case_named("zoo:gcra")
    assert not [name for name in cases() if ":" in name or name == "zoo"]
    assert library.cases_named(["zoo", "zoo:gcra"]) == [
        one for name, one in library.variants().items() if name.startswith("zoo:")
    ]


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DocumentError, match=r"gone.yaml: cannot be read: No such file"):
        case_named(str(tmp_path / "gone.yaml"))


# Workload -------------------------------------------------------------------------------------------------------------


BURSTS = cases()["bursts"].scenario


def test_one_seed_wants_the_same_twice():
    crowd = Crowd("agent", 1, 5, spike_rate=0.5)
    assert list(turns(crowd, random.Random("7"))) == list(turns(crowd, random.Random("7")))
    assert list(turns(crowd, random.Random("7"))) != list(turns(crowd, random.Random("8")))


def test_a_crowd_without_a_number_of_turns_has_no_end():
    assert len(list(islice(turns(Crowd("agent", 1), random.Random(0)), 500))) == 500


def test_spikes_come_as_often_and_as_high_as_they_should():
    crowd = Crowd("agent", 1, 2000, latency_s=0.1, latency_sigma=0.0, spike_rate=0.2, spike_factor=5)
    latencies = [turn.latency_s for turn in turns(crowd, random.Random(1))]
    spikes = [latency_s for latency_s in latencies if latency_s > 0.3]
    assert all(math.isclose(latency_s, 0.5) for latency_s in spikes)
    assert 0.16 < len(spikes) / len(latencies) < 0.24


def test_a_scenario_changes_its_kind_of_limits_and_nothing_else():
    windows = BURSTS.on(LimitKind.WINDOW)
    assert {limit.kind for limit in windows.provider.limits} == {LimitKind.WINDOW}
    assert [limit.amount for limit in windows.provider.limits] == [limit.amount for limit in BURSTS.provider.limits]
    assert windows.on(LimitKind.BUCKET) == BURSTS
    assert not BURSTS.without_headers().provider.rate_limit_headers


def test_a_scenario_with_several_providers_changes_all_of_them():
    mixed = cases()["mixed-providers"].scenario
    providers = [one.provider for one in mixed.on(LimitKind.WINDOW).sites] + [mixed.on(LimitKind.WINDOW).provider]
    assert {limit.kind for provider in providers for limit in provider.limits} == {LimitKind.WINDOW}
    blind = mixed.without_headers()
    assert not blind.provider.rate_limit_headers
    assert not any(site.provider.rate_limit_headers for site in blind.sites)
