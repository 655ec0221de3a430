"""What the page is told of the past: read once, kept while it is fresh, and of a month only what may have changed."""

import asyncio

import msgspec

from hivemind_addon.proxy.api.page_questions import ChartsQuestion, PastCharts, PastCost, PastIncident, PastPart
from hivemind_addon.proxy.gate.interfaces.page_history import MOST_AT_ONCE, SETTLED_S, ChartSpan, Past, ShownCharts
from hivemind_addon.proxy.journal.questions import Unanswered
from tests.conftest import FakeClock

PART_S = ChartSpan.DAY.part_s
NOW = 2_000_000 * PART_S
HOUR_S = 3600.0


class Journal:
    """Has one request in each part, and an incident each four hours; counts what it is asked."""

    def __init__(self):
        self.clock = FakeClock(0.0, NOW)
        self.asked = []
        self.fails = ""
        self.gate = asyncio.Event()
        self.gate.set()
        self.reading = self.most = 0
        self.past = Past(ask=self.ask, clock=self.clock)

    async def ask(self, question):
        self.asked.append(msgspec.json.decode(question))
        self.reading += 1
        self.most = max(self.most, self.reading)
        await self.gate.wait()
        self.reading -= 1
        if self.fails:
            raise Unanswered(self.fails)
        if self.asked[-1]["type"] != "charts":
            return "{}"
        asked = msgspec.json.decode(question, type=ChartsQuestion)
        parts = [PastPart(at, requests=1) for at in self.grid(asked.since, asked.until, asked.part_s)]
        costs = [PastCost(at, "ann", 1, 1) for at in self.grid(asked.costs_since, asked.until, HOUR_S)]
        bad = [PastIncident(at, at + 60, "", "down", "up") for at in self.grid(NOW - 86_400, asked.until, 4 * HOUR_S)]
        bad = [one for one in bad if one.ended >= asked.incidents_since]
        return msgspec.json.encode(PastCharts(tuple(parts), tuple(costs), tuple(bad))).decode()

    @staticmethod
    def grid(since, until, step):
        at = since - since % step + (step if since % step else 0)
        while at < until:
            yield at
            at += step

    async def read(self):
        await asyncio.gather(*self.past._asking.values())

    async def charts(self):
        self.past.charts(ChartSpan.DAY)
        await self.read()
        return msgspec.json.decode(self.past.charts(ChartSpan.DAY), type=ShownCharts)


async def test_a_question_is_asked_once_while_it_is_read_and_while_its_answer_is_fresh():
    journal = Journal()
    assert [journal.past.charts(ChartSpan.DAY) for _ in range(5)] == [None] * 5
    await journal.read()
    assert all(journal.past.charts(ChartSpan.DAY) for _ in range(5))
    assert len(journal.asked) == 1
    journal.clock.now += ChartSpan.DAY.fresh_s
    assert journal.past.charts(ChartSpan.DAY), "what is stale is shown while it is read anew"
    await journal.read()
    assert len(journal.asked) == 2


async def test_of_what_was_read_before_only_the_last_hours_are_read_again_and_nothing_is_told_twice():
    journal = Journal()
    whole = await journal.charts()
    for _ in range(20):
        journal.clock.now += 3 * HOUR_S + 7
        told = await journal.charts()
        asked = journal.asked[-1]
        assert asked["until"] - asked["since"] <= SETTLED_S + 3 * HOUR_S + 2 * PART_S + 60
        assert asked["until"] - asked["costs_since"] <= SETTLED_S + 3 * HOUR_S + 2 * HOUR_S + 60
        assert asked["until"] - asked["incidents_since"] <= SETTLED_S + 3 * HOUR_S + 60
        parts, costs = [one.began for one in told.charts.parts], [one.began for one in told.charts.costs]
        assert parts == list(journal.grid(told.since, told.until, PART_S))
        assert costs == list(journal.grid(told.since, told.until, HOUR_S))
        ends = [one.ended for one in told.charts.incidents]
        assert ends == sorted(set(ends))
        assert len(ends) in (6, 7) or told.since < NOW - 86_400
    assert len(whole.charts.parts) in (144, 145)


async def test_only_few_are_read_at_once_and_a_crowd_is_told_so():
    journal = Journal()
    journal.gate.clear()
    answers = [journal.past.story(f"{number:x}") for number in range(50)]
    assert answers.count(None) == 20
    assert b"too much is asked for at once" in answers[-1]
    await asyncio.wait(journal.past._asking.values(), timeout=0)
    journal.gate.set()
    await journal.read()
    assert journal.most == MOST_AT_ONCE


async def test_what_cannot_be_read_says_so_and_is_tried_again():
    journal = Journal()
    journal.fails = "it keeps no journal (hivemind_journal=off)"
    assert journal.past.fleets() is None
    await journal.read()
    assert msgspec.json.decode(journal.past.fleets()) == {"problem": journal.fails}
    journal.fails = ""
    journal.clock.now += 10
    journal.past.fleets()
    await journal.read()
    assert journal.past.fleets() == b"{}"
    journal.gate.clear()
    journal.past.story("1")
    await journal.past.close()
    assert journal.past.story("2") is None
    await journal.past.close()
