import asyncio
import logging

import pytest

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted
from hivemind_addon.kernel.values.events import GuardTripped
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand, Outcome, OutcomeKind, PoolKey, Ticket
from hivemind_addon.proxy.record.news import BURST, EVERY_S
from hivemind_addon.proxy.run.driver import Driver
from hivemind_addon.proxy.run.guard import Guard

KEY = PoolKey("host", "account", "model")


@pytest.fixture
def seen():
    return []


@pytest.fixture
async def driver(clock, seen):
    import random

    return Driver(scheduler=Scheduler(rng=random.Random(1)), clock=clock, observers=[seen.append])


@pytest.fixture
def guard(driver):
    return Guard(driver)


async def admitted(driver, name="t", limit=2):
    now = driver.clock.monotonic()
    ticket = Ticket(
        id=name,
        pool=KEY,
        agent="a",
        session="s",
        model="m",
        demand=Demand(),
        arrived_at=now,
        deadline_at=now + 99,
        shed_at=now + 90,
    )
    driver.submit(ticket, PoolSettings(concurrency=ConcurrencySettings(initial=limit, maximum=limit)))
    answer = driver.decision(name)
    assert isinstance(answer, Admitted)
    return answer.attempt


def in_flight(driver):
    return sum(pool.in_flight for pool in driver.snapshot().pools)


async def test_a_trip_is_counted_noted_and_logged_once_with_its_traceback(guard, seen, caplog):
    error = RuntimeError("broken")
    with caplog.at_level(logging.ERROR):
        guard.trip("somewhere", error, "ticket-1")
    assert guard.trips == 1
    assert [(event.where, event.ticket_id) for event in seen if isinstance(event, GuardTripped)] == [
        ("somewhere", "ticket-1")
    ]
    (record,) = caplog.records
    assert record.exc_info[1] is error
    assert "ticket-1" in record.getMessage()


async def test_a_defect_that_trips_all_night_is_a_few_tracebacks_and_then_a_number(guard, clock, caplog):
    for _ in range(BURST + 20):
        guard.trip("intake", KeyError("x"))
    guard.trip("intake", ValueError("another defect"))
    guard.trip("update", KeyError("x"))
    assert sum(record.exc_info is not None for record in caplog.records) == BURST + 2
    clock.advance(EVERY_S)
    guard.trip("intake", KeyError("x"))
    assert "hivemind: 20 more guard trips in intake (KeyError) within 5 min" in caplog.messages
    assert caplog.records[-1].exc_info, "it is told again"
    assert guard.trips == BURST + 23


async def test_a_trip_does_not_raise_when_the_driver_is_broken_too(guard, driver, monkeypatch, caplog):
    def boom(*_):
        raise RuntimeError("also broken")

    monkeypatch.setattr(driver, "note", boom)
    guard.trip("somewhere", RuntimeError("broken"))
    assert guard.trips == 1
    assert "also broken" in caplog.text


async def test_only_as_many_pass_as_the_pools_last_limit_and_they_count_as_in_flight(guard, driver):
    driver.settle(await admitted(driver, limit=2), AttemptResult(Outcome(OutcomeKind.CANCELLED, "over")))
    entered = []

    async def enter(name):
        await guard.enter(KEY)
        entered.append(name)

    tasks = [asyncio.ensure_future(enter(name)) for name in "abc"]
    await asyncio.wait(tasks[:2])
    assert entered == ["a", "b"]
    assert in_flight(driver) == 2
    guard.leave(KEY)
    await tasks[2]
    assert entered == ["a", "b", "c"]
    guard.leave(KEY)
    guard.leave(KEY)
    assert in_flight(driver) == 0


async def test_an_unknown_pool_lets_one_pass(guard):
    await guard.enter(KEY)
    second = asyncio.ensure_future(guard.enter(KEY))
    done, _ = await asyncio.wait([second], timeout=0)
    assert not done
    guard.leave(KEY)
    await second
    guard.leave(KEY)


async def test_a_reservation_is_given_back(guard, driver):
    guard.give_back(await admitted(driver))
    assert in_flight(driver) == 0


async def test_what_cannot_be_given_back_now_is_owed_until_the_core_works_again(guard, driver, monkeypatch):
    reservations = [await admitted(driver, name) for name in ("t1", "t2")]

    def boom(*_, **__):
        raise RuntimeError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(driver, "settle", boom)
        for attempt in reservations:
            guard.give_back(attempt)
        assert not guard.repay()
    assert in_flight(driver) == 2
    assert guard.repay()
    assert in_flight(driver) == 0


async def test_what_was_settled_after_all_is_not_owed(guard, driver):
    attempt = await admitted(driver)
    driver.settle(attempt, AttemptResult(Outcome(OutcomeKind.CANCELLED, "over")))
    guard.give_back(attempt)
    assert guard.repay()
    assert in_flight(driver) == 0
