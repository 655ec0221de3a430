"""Every scenario, and a tenth of the variants, against its `expect:` block in virtual time, with one seed.

`hivemind lab prove` has more.
"""

import pytest

from hivemind_addon.sim.library import cases, variants
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.report import missed
from hivemind_addon.sim.trial import run_series, setups


@pytest.mark.parametrize("case", [*cases().values(), *[*variants().values()][::10]], ids=lambda case: case.name)
def test_the_scheduler_keeps_what_a_scenario_expects(case):
    series = run_series(list(setups(case)), [Policy.HIVEMIND], [0])
    assert all(one.verdicts() for one in series), "something runs unjudged"
    assert missed(series) == []


def test_the_seven_of_the_paper_are_there():
    paper = [case for case in cases().values() if case.paper]
    assert sorted(sum(crowd.agents for crowd in case.scenario.crowds) for case in paper) == [5, 10, 10, 11, 20, 20, 50]
    assert all(crowd.retries == 0 for case in paper for crowd in case.scenario.crowds), "who dies of its first error"


def test_every_scenario_promises_that_hardly_anybody_is_lost():
    for case in cases().values():
        asked = [one for one in case.expect if one.headers]
        assert asked
        assert all(one.lost is not None and one.lost <= 0.05 for one in asked), case.name
