"""Limits that a profile states: no span of their length holds more, wherever it begins."""

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.stated_limits import StatedLimit, StatedLimits
from tests.kernel.samples import ticket

WRITE = ticket()
READ = replace(WRITE, only_reads=True)


@pytest.fixture
def stated():
    found = StatedLimits()
    found.state(
        [
            StatedLimit("points", 10, 60, writes=5, groups=("core", "search")),
            StatedLimit("new", 1, 1, reads=0, groups=("create",)),
        ]
    )
    return found


def test_any_span_holds_what_is_stated(stated):
    for at in (0, 1, 2):
        assert stated.opens_at(READ, "core", at) == at
        stated.sent(READ, "core", at)
    stated.sent(WRITE, "search", 3)  # of the same account
    assert stated.opens_at(READ, "core", 4) == 4
    assert stated.opens_at(WRITE, "core", 4) == pytest.approx(62, abs=1)  # three reads have to be forgotten first
    assert stated.opens_at(WRITE, "other", 4) == 4


def test_what_only_reads_may_take_nothing(stated):
    stated.sent(WRITE, "create", 0)
    assert stated.opens_at(READ, "create", 0) == 0
    assert stated.opens_at(WRITE, "create", 0) == pytest.approx(1, abs=0.5)
    for _ in range(3):
        stated.sent(READ, "create", 0)
    assert len(stated._logs["new"]._sent) == 1, "what takes nothing need not be remembered"


def test_more_than_all_of_it_goes_when_nothing_is_taken():
    stated = StatedLimits()
    stated.state([StatedLimit("points", 3, 10, writes=5)])
    assert stated.opens_at(WRITE, "*", 0) == 0
    stated.sent(WRITE, "*", 0)
    assert 10 <= stated.opens_at(READ, "*", 1) <= 11
