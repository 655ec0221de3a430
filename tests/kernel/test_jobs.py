"""Jobs: work that outlives its request keeps its reservation until its end is seen, or it expires."""

import json
import random

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel import jobs
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.events import AttemptEnded, BudgetBooked, TicketEnded
from hivemind_addon.kernel.values.spend import AccountState, Budget, Scope, Spend
from hivemind_addon.kernel.values.ticket import AttemptResult, Job, Usage
from tests.kernel.samples import CANCELLED, SUCCESS, ticket

BUDGET = Budget(Scope.AGENT, "s1", tokens=1000)
END = AttemptResult(SUCCESS, Usage(input_tokens=300, output_tokens=50, reported=True))
GOING = Usage(reported=True)


def asked(name, now=0.0, expected=100):
    return replace(ticket(name, at=now), budgets=(BUDGET,), expected=Spend(tokens=expected))


def begin(scheduler, name, now=0.0, *, lasts_s=60.0, outcome=SUCCESS):
    """A request whose answer says that its work goes on."""
    scheduler.submit(asked(name, now), PoolSettings(), now)
    (admitted,) = scheduler.poll(now)
    job = Job(f"host/{name}", lasts_s)
    scheduler.settle(admitted.attempt, AttemptResult(outcome, GOING, job=job), now)


def account(scheduler, now=0.0):
    (view,) = scheduler.snapshot(now).budgets
    return view.spent.tokens, view.reserved.tokens


def drained(scheduler, *kinds):
    return [event for event in scheduler.drain_events() if isinstance(event, kinds)]


@pytest.mark.parametrize("outcome", [SUCCESS, CANCELLED])
def test_a_job_takes_no_slot_and_keeps_its_reservation_until_its_end_is_seen_once(outcome):
    scheduler = Scheduler(rng=random.Random(1))
    begin(scheduler, "a", outcome=outcome)
    assert scheduler.is_idle
    assert account(scheduler) == (0, 100)
    assert not drained(scheduler, AttemptEnded, TicketEnded)
    for _ in range(2):
        scheduler.end_job("host/a", END, 5.0)
    assert account(scheduler) == (350, 0)
    attempt, end = drained(scheduler, AttemptEnded, TicketEnded)
    assert (attempt.spend.tokens, attempt.usage, attempt.duration_s) == (350, END.usage, 5.0)
    assert (end.end, end.attempts) == ("delivered", 1)


def test_a_job_whose_end_nobody_saw_counts_with_what_was_expected():
    scheduler = Scheduler(rng=random.Random(1))
    begin(scheduler, "a", lasts_s=60.0)
    assert scheduler.next_wakeup() == 60.0
    scheduler.poll(59.9)
    assert account(scheduler) == (0, 100)
    scheduler.poll(60.0)
    assert account(scheduler) == (100, 0)
    scheduler.end_job("host/a", END, 61.0)
    assert account(scheduler) == (100, 0), "too late"


def test_a_ticket_that_waits_for_the_reservation_of_a_job_goes_at_its_end():
    scheduler = Scheduler(rng=random.Random(1))
    scheduler.adopt(asked("batch", expected=950), Job("host/batch", 60.0), 0.0)
    scheduler.submit(asked("b"), PoolSettings(), 1.0)
    assert not scheduler.poll(1.0)
    scheduler.end_job("host/batch", END, 2.0)
    assert [one.attempt.ticket.id for one in scheduler.poll(2.0)] == ["b"]


def test_beyond_the_bound_the_job_that_expires_first_is_given_up(monkeypatch):
    monkeypatch.setattr(jobs, "MOST", 2)
    scheduler = Scheduler(rng=random.Random(1))
    for name, lasts_s in (("a", 60.0), ("b", 30.0), ("c", 90.0)):
        begin(scheduler, name, lasts_s=lasts_s)
    assert [scheduler.has_job(f"host/{name}") for name in "abc"] == [True, False, True]
    assert account(scheduler) == (100, 200)


def test_a_job_goes_on_in_the_next_process():
    first, second = Scheduler(rng=random.Random(1)), Scheduler(rng=random.Random(1))
    begin(first, "a", 10.0, lasts_s=60.0)
    kept = json.loads(json.dumps(first.export_jobs(20.0, wall=1020.0)))
    booked = drained(first, BudgetBooked)[-1]
    # The journal counts what was in flight as spent, because it may have been billed.
    saved = AccountState(booked.budget, 15.0, booked.spent + booked.reserved, booked.added)
    second.restore_budgets([saved], 500.0)
    assert account(second, 500.0) == (100, 0)
    second.restore_jobs([*kept, {"name": "broken"}, 7], 500.0, wall=1025.0)
    assert account(second, 500.0) == (0, 100)
    assert second.next_wakeup() == 545.0
    second.end_job("host/a", END, 510.0)
    assert account(second, 510.0) == (350, 0)
    assert [event.ticket_id for event in drained(second, AttemptEnded, TicketEnded)] == ["a", "a"]
