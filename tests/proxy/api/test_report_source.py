"""One report for all: when it is made, how often, and that others have the loop meanwhile."""

import asyncio

import pytest

from hivemind_addon.kernel.values.snapshot import Counters, Snapshot
from hivemind_addon.proxy.api.report import ProxyView, Report
from hivemind_addon.proxy.api.report_source import FRESH_S, LEAST_SHARE, ReportSource
from tests.conftest import FakeClock

PARTS = 3


async def turn():
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no time passes


class House:
    """What is told: how many reports were begun before it, and which parts were made."""

    def __init__(self):
        self.clock = FakeClock(100.0, 0.0)
        self.begun = 0
        self.log = []
        self.takes_s = 0.0
        self.fails = False
        self.source = ReportSource(self.parts, self.clock.monotonic)

    def parts(self):
        if self.fails:
            raise RuntimeError("injected")
        self.begun += 1
        number = self.begun
        for part in range(PARTS):
            self.log.append((number, part))
            self.clock.now += self.takes_s
            yield
        view = ProxyView(pid=number, port=1, listens=(), confdir="", hosts=())
        return Report(version=1, proxy=view, snapshot=Snapshot(0.0, stopping=False, pools=(), counters=Counters()))


@pytest.fixture
async def house():
    return House()


def number_of(line):
    assert line.endswith(b"}\n")
    return int(line.partition(b'"pid":')[2].partition(b",")[0])


async def test_the_loop_turns_between_the_parts(house):
    turns = []

    async def others():
        while len(house.log) < PARTS:
            turns.append(len(house.log))
            await turn()

    await asyncio.gather(others(), house.source.make())
    assert set(turns) >= set(range(PARTS))


async def test_who_asks_gets_one_that_was_begun_later_and_shares_it(house):
    first = asyncio.ensure_future(house.source.make())
    while not house.log:
        await turn()
    house.clock.now += 0.1
    others = [asyncio.ensure_future(house.source.make()) for _ in range(20)]
    assert number_of(await first) == 1
    assert {number_of(line) for line in await asyncio.gather(*others)} == {2}
    assert house.begun == 2


async def test_an_age_that_is_allowed_needs_no_new_one(house):
    await house.source.make()
    house.clock.now += 0.4
    assert number_of(await house.source.make(max_age_s=0.5)) == 1
    house.clock.now += 0.4
    assert number_of(await house.source.make(max_age_s=0.5)) == 2


async def test_who_is_cancelled_leaves_the_others_theirs(house):
    first = asyncio.ensure_future(house.source.make())
    second = asyncio.ensure_future(house.source.make())
    while not house.log:
        await turn()
    first.cancel()
    assert number_of(await second) == 2


async def test_at_once_is_whole_and_good_for_a_while(house):
    assert number_of(house.source.at_once()) == 1
    assert len(house.log) == PARTS
    house.clock.now += FRESH_S - 0.01
    assert number_of(house.source.at_once()) == 1
    house.clock.now += 0.02
    assert number_of(house.source.at_once()) == 2


async def test_what_takes_long_is_made_less_often(house):
    house.takes_s = 0.2
    house.source.at_once()
    assert house.source.took_s == pytest.approx(PARTS * 0.2)
    house.clock.now += LEAST_SHARE * PARTS * 0.2 - 0.01
    assert number_of(house.source.at_once()) == 1


async def test_for_who_asks_again_and_again_it_is_made_in_parts_meanwhile(house):
    house.source.at_once()
    assert house.source._timer is None, "once is nobody who stays"
    house.clock.now += FRESH_S
    house.source.at_once()
    house.clock.now += FRESH_S / 2 + 0.01
    house.source._make_ahead()
    await house.source._ahead
    assert house.begun == 3
    house.clock.now += FRESH_S - 0.1
    assert number_of(house.source.at_once()) == 3


async def test_one_that_was_made_at_once_meanwhile_stays_the_newest(house):
    making = asyncio.ensure_future(house.source.make())
    while not house.log:
        await turn()
    house.clock.now += 0.1
    assert number_of(house.source.at_once()) == 2
    assert number_of(await making) == 2


async def test_one_that_cannot_be_made_is_told_to_who_asks_and_the_next_one_is_tried(house):
    house.fails = True
    with pytest.raises(RuntimeError):
        house.source.at_once()
    with pytest.raises(RuntimeError):
        await house.source.make()
    house.fails = False
    assert number_of(await house.source.make()) == 1
