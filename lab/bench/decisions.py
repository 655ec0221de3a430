"""`python -m lab.bench.decisions`: the core's time for a request with so many tickets queued, and the weight of a ticket.

A decision is a call into the core and the poll after it: a ticket is submitted; an attempt is settled, and the next
ticket goes. An answer's head, from which meters learn, is timed apart. The queue keeps its length: tickets of 200
sessions of 50 agents, of all priorities, some of them with a prompt that others share. Time is virtual; only the
core's own work is timed, by the thread's processor time: other load on the machine does not count.
"""

import gc
import itertools
import random
import sys
import tracemalloc
from dataclasses import dataclass
from time import thread_time

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted
from hivemind_addon.kernel.values.ticket import (
    AttemptResult,
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Priority,
    Reading,
    Ticket,
)
from lab.bench.plan import FULL
from lab.bench.timing import Timing
from lab.markdown import markdown_table

IN_FLIGHT = 100
"""Attempts, all the time."""
SESSIONS, AGENTS = 200, 50
WEIGHED = 10_000
"""Tickets in the queue whose memory is measured."""
POOL = PoolKey("api.anthropic.com", "key-1", "claude-sonnet-4*")
SUCCESS = Outcome(OutcomeKind.SUCCESS, "200", status=200)
_STEP_S = 0.01
_NO_LIMIT = 10**9


@dataclass(frozen=True)
class Row:
    """A length of the queue."""

    queued: int
    decision: Timing
    head: Timing


class Load:
    """A scheduler with a queue of constant length."""

    def __init__(self, queued, *, seed=0, sessions=SESSIONS, agents=AGENTS):
        self.scheduler = Scheduler(rng=random.Random(seed))
        self.now = 0.0
        self._rng = random.Random(seed)
        self._settings = PoolSettings(concurrency=ConcurrencySettings(initial=IN_FLIGHT, maximum=IN_FLIGHT))
        self._numbers = itertools.count()
        self._sessions, self._agents = sessions, agents
        self._flights = []
        for _ in range(queued + IN_FLIGHT):
            self.submit(self.ticket())
        self.coming = self.ticket()

    def ticket(self):
        rng, number = self._rng, next(self._numbers)
        session = rng.randrange(self._sessions)
        shares = rng.random() < 0.2
        into = rng.randint(100, 50_000)
        out = rng.randint(50, 2_000)
        return Ticket(
            id=f"t{number}",
            pool=POOL,
            agent=f"agent-{session % self._agents}",
            session=f"session-{session}",
            model="claude-sonnet-4-5",
            demand=Demand(input_tokens=into, output_tokens=out, total_tokens=into + out),
            arrived_at=self.now,
            deadline_at=self.now + 1e6,
            shed_at=self.now + rng.uniform(9e5, 1e6),
            priority=rng.choice(list(Priority)),
            prefix=f"prefix-{session % 20}" if shares else "",
            prefix_tokens=into // 2 if shares else 0,
            cached_tokens=into // 4,
            streamed=True,
            request_hash=f"hash-{number}",
        )

    def submit(self, ticket):
        self.scheduler.submit(ticket, self._settings, self.now)

    def poll(self):
        for decision in self.scheduler.poll(self.now):
            assert isinstance(decision, Admitted)
            self._flights.append(decision.attempt)
        self.scheduler.next_wakeup()
        self.scheduler.drain_events()

    def head(self):
        self.scheduler.observe(self._flights[0], HINTS, self.now)
        self.poll()

    def end(self):
        flight = self._flights.pop(0)
        self.scheduler.settle(flight, AttemptResult(SUCCESS, charged=flight.ticket.demand), self.now)
        self.poll()

    def arrive(self):
        self.submit(self.coming)
        self.poll()


def _reading(dimension):
    return Reading(
        meter=dimension.value, dimension=dimension, window_s=60, limit=_NO_LIMIT, remaining=_NO_LIMIT, reset_in_s=0.0
    )


HINTS = Hints(readings=tuple(map(_reading, Dimension)))


def time_calls(queued, turns, *, sessions=SESSIONS, agents=AGENTS):
    """The time of the core's calls with so many tickets queued; a turn is a request's way through."""
    load = Load(queued, sessions=sessions, agents=agents)
    load.poll()
    samples = {load.head: [], load.end: [], load.arrive: []}
    gc.collect()
    for _ in range(turns):
        load.now += _STEP_S
        load.coming = load.ticket()
        for call, seconds in samples.items():
            began = thread_time()
            call()
            seconds.append(thread_time() - began)
    return Row(queued, Timing.of(samples[load.end] + samples[load.arrive]), Timing.of(samples[load.head]))


def bytes_per_ticket(queued):
    """The memory of a queued ticket, the ticket itself included."""
    gc.collect()
    tracemalloc.start()
    load = Load(queued)
    load.poll()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / queued


def report(rows, ticket_bytes):
    """A Markdown table."""
    lines = (f"{row.queued:,} | {_cell(row.decision)} | {_cell(row.head)}" for row in rows)
    table = markdown_table("Queued | Decision: mean, p99, worst µs | Head: mean, p99, worst µs", lines)
    return f"{table}\nA queued ticket takes {ticket_bytes:,.0f} bytes."


def _cell(timing):
    return ", ".join(f"{seconds * 1e6:,.0f}" for seconds in (timing.mean_s, timing.p99_s, timing.max_s))


def main():
    rows = [time_calls(queued, FULL.decisions) for queued in FULL.queued]
    print(report(rows, bytes_per_ticket(WEIGHED)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
