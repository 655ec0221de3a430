"""Jobs: work at a provider that outlives the request, such as a response in background mode, or a batch.

    an answer says that the work goes on ──► running ──► ended: a later answer reports the usage
                                                └──────► unseen: the job expired, or too many jobs are remembered

The attempt of a job ends with the job. Until then the budgets keep the reservation. A job whose end nobody saw may have
been billed, so the expected spend is booked.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.kernel.budget import actual_usage
from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.values.events import AttemptEnded, AttemptStarted, JobNoted, Submitted, TicketEnded
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import AttemptResult, Outcome, OutcomeKind, Ticket

MOST = 1000
"""Running jobs that are remembered."""
UNSEEN = AttemptResult(Outcome(OutcomeKind.FAILED, "its end was not seen", ambiguous=True))


class RunningJob(Struct, frozen=True):
    """A job, with the attempt that waits for the end."""

    name: str
    ticket: Ticket
    attempt: int
    began_at: float
    until: float
    """Monotonic instant of the expiry."""

    def begun(self, now: float) -> tuple[Submitted, AttemptStarted, JobNoted]:
        """The events of an attempt that this process did not admit."""
        ticket = self.ticket
        started = AttemptStarted(now, ticket.id, ticket.pool, self.attempt, waited_s=0.0, in_flight=0)
        return Submitted(at=now, ticket=ticket), started, self.noted(now, self.until)

    def noted(self, now: float, until: float | None) -> JobNoted:
        """The event of the beginning, or of the end (None)."""
        return JobNoted(now, self.ticket.id, self.ticket.pool, self.name, until)

    def ended(self, result: AttemptResult, spend: Spend, now: float) -> tuple[JobNoted, AttemptEnded, TicketEnded]:
        """The events of the end of the attempt and of the ticket, whose client has the answer to the request."""
        ticket, outcome = self.ticket, result.outcome
        attempt = AttemptEnded(
            now,
            ticket.id,
            ticket.pool,
            self.attempt,
            outcome,
            actual_usage(ticket, result),
            max(0.0, now - self.began_at),
            spend,
        )
        waited_s = max(0.0, self.began_at - ticket.arrived_at)
        end = TicketEnded(now, ticket.id, ticket.pool, "delivered", outcome.reason, self.attempt, 0, waited_s)
        return self.noted(now, None), attempt, end

    def shifted(self, shift_s: float) -> "RunningJob":
        """The job with instants on another clock."""
        ticket = self.ticket
        ticket = replace(
            ticket,
            arrived_at=ticket.arrived_at + shift_s,
            deadline_at=ticket.deadline_at + shift_s,
            shed_at=ticket.shed_at + shift_s,
        )
        return replace(self, ticket=ticket, began_at=self.began_at + shift_s, until=self.until + shift_s)


class Jobs:
    """The running jobs of a process, by name."""

    def __init__(self) -> None:
        self._running: dict[str, RunningJob] = {}
        self._ends: KeyedHeap[str] = KeyedHeap()

    def __contains__(self, name: str) -> bool:
        return name in self._running

    @property
    def ends_at(self) -> float:
        """When the next job expires; infinite: no job runs."""
        return self._ends.first_key

    def begin(self, job: RunningJob) -> RunningJob | None:
        """Remember a job. Returns the job to end unseen: beyond the bound the job that expires first."""
        self._running[job.name] = job
        self._ends.put(job.name, job.until)
        return self.end(self._ends.first or "") if len(self._running) > MOST else None

    def end(self, name: str) -> RunningJob | None:
        """Forget a job whose end was seen; None: no such job runs, or the end was seen before."""
        self._ends.drop(name)
        return self._running.pop(name, None)

    def expired(self, now: float) -> Iterator[RunningJob]:
        """Forget the jobs that have expired."""
        while self._ends.first_key <= now and (job := self.end(self._ends.first or "")) is not None:
            yield job

    def export(self, now: float, wall: float) -> list[object]:
        """The running jobs as plain JSON values, with instants in epoch seconds. `wall`: `now` in epoch seconds."""
        return [msgspec.to_builtins(job.shifted(wall - now)) for job in self._running.values()]


def read_jobs(data: object, now: float, wall: float) -> list[RunningJob]:
    """The jobs that an earlier process exported, as far as they can be understood."""
    jobs = []
    for one in data if isinstance(data, list) else ():
        try:
            jobs.append(msgspec.convert(one, RunningJob).shifted(now - wall))
        except msgspec.ValidationError:
            continue
    return jobs[:MOST]
