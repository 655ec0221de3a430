"""The page: every series and every expectation, kept or missed."""

from dataclasses import replace

import pytest

from hivemind_addon.lab.sim.policy import COMPARED, Policy
from hivemind_addon.lab.sim.proof import Proof, number, page, prove


@pytest.fixture(scope="module")
def proof():
    told = []
    made = prove(seeds=1, only=["micro-5", "neighbour", "changing-cap"], tell=told.append)
    assert len(told) == len(made.series)
    return made


def test_all_policies_are_compared(proof):
    assert {one.setup.policy for one in proof.series} == set(COMPARED)


def test_the_page_has_every_expectation_and_every_series(proof):
    text = page(proof, "hivemind prove --seeds 1")
    assert "`hivemind prove --seeds 1`" in text
    assert "| micro-5 | bucket | agents lost | ≤ 0 | 0 | met |" in text
    assert "| micro-5 | window, no headers | hivemind | 0 of 5 | 40 | 0 | 0 |" in text
    assert "| changing-cap | none | aimd-pause | 0 of 40 |" in text
    assert "(neighbour counted: " in text
    assert "- `sdk-retry`: " in text
    assert all(case in text for case in ("- `micro-5`: HiveMind paper", "- `neighbour`: Somebody else"))


def test_only_the_scheduler_is_judged(proof):
    assert {one.setup.policy for one, _ in proof.verdicts()} == {Policy.HIVEMIND}
    assert proof.missed() == []


def test_what_is_missed_is_told(proof):
    (first, *_) = (one for one in proof.series if one.setup.policy == Policy.HIVEMIND)
    crowd = first.runs[0].crowds["agent"]
    lossy = replace(first, runs=(replace(first.runs[0], crowds={"agent": replace(crowd, lost=2)}),))
    assert Proof(1, (lossy,)).missed() == ["micro-5, bucket: agents lost: 0.4, expected ≤ 0"]
    assert "**missed**" in page(Proof(1, (lossy,)), "hivemind prove")


def test_numbers_are_short():
    assert [number(value) for value in (3.0, 0.12345)] == ["3", "0.123"]
