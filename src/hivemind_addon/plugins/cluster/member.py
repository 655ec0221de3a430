"""The tickets of a process in a cluster: their waits and their attempts.

The coordinator decides which ticket goes. The member, which has the client, judges the end of an attempt: no client
waits for a verdict, and no verdict is lost when a coordinator dies.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from hivemind_addon.kernel.budget import actual_spend, actual_usage, calls_of
from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.jobs import UNSEEN, Jobs, RunningJob
from hivemind_addon.kernel.limits.owner import as_block, owner_of
from hivemind_addon.kernel.pool import PoolSettings, PoolTold
from hivemind_addon.kernel.retry import History, judge, last_moment
from hivemind_addon.kernel.values.command import Cancel
from hivemind_addon.kernel.values.decision import (
    ActiveBlock,
    Admitted,
    Backoff,
    Finished,
    GiveUp,
    Refused,
    Shed,
    Verdict,
)
from hivemind_addon.kernel.values.events import AttemptEnded, AttemptStarted, BackedOff, Event, Submitted, TicketEnded
from hivemind_addon.kernel.values.snapshot import BreakerState, PoolView, RequestState, TicketView
from hivemind_addon.kernel.values.spend import Budget, Shortage, Spend
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    ContractError,
    Hints,
    Job,
    OutcomeKind,
    PoolKey,
    Reason,
    Ticket,
)
from hivemind_addon.plugins.cluster.coordinator import NOT_SENT, shifted_event
from hivemind_addon.plugins.cluster.messages import (
    AccountsChanged,
    Admits,
    Arrived,
    Bypassing,
    Ended,
    Ends,
    Flying,
    FromCoordinator,
    FromMember,
    Gone,
    HeadCame,
    Join,
    PoolsChanged,
    Refuses,
    Sheds,
    Spending,
    Tells,
    Uses,
    Waiting,
    Welcome,
)

_NEVER = float("inf")
_REMEMBERED_S = 15.0
"""How long kept ends are repeated: after an engine forgets, only the members' copies are left, some seconds old."""
_COME_BACK_S = 5.0
"""After this time clients come back that no coordinator has answered in time."""


@dataclass(slots=True, eq=False)
class _Own:
    """A ticket of this process."""

    ticket: Ticket
    wait_began_at: float
    history: History = field(default_factory=History)
    not_before: float = -_NEVER
    waited_s: float = 0.0
    attempt: Attempt | None = None
    """In flight; None: the ticket waits."""


class Member:
    """Offers a scheduler's interface to the driver, but decides nothing about the order of tickets."""

    def __init__(self, *, rng: random.Random) -> None:
        self.events: list[Event] = []
        self.superseded: list[Attempt] = []
        self.cancelled: list[Attempt] = []
        """Attempts that a person has cancelled, and that the driver has to end."""
        self.accounts: dict[str, str] = {}
        """Account → the account that represents the first."""
        self.send: Callable[[FromMember], None] | None = None
        """Sends to the coordinator that has the tickets; None: the next coordinator gets all tickets."""
        self.is_alone = False
        """Whether the coordinator is in this process and keeps nothing."""
        self.jobs = Jobs()
        self._rng = rng
        self._own: dict[str, _Own] = {}
        self._deadlines: KeyedHeap[str] = KeyedHeap()
        self._decisions: list[Admitted | Shed | Refused] = []
        self._settings: dict[PoolKey, PoolSettings] = {}
        self._pools: dict[PoolKey, PoolTold] = {}
        self._bypassing: dict[PoolKey, int] = {}
        self._spent: deque[Spending] = deque()
        self._spent_alone: dict[tuple[str, str, tuple[Budget, ...]], tuple[Spend, float]] = {}
        """(agent, group, budgets) → the sum, and the instant of the newest spending."""
        self._number = 0
        self._stopping = False

    def __repr__(self) -> str:
        flying = sum(own.attempt is not None for own in self._own.values())
        return f"<Member, {len(self._own) - flying} waiting, {flying} in flight>"

    @property
    def is_idle(self) -> bool:
        """Whether no ticket waits and no attempt is in flight, not even a bypassing attempt."""
        return not self._own and not self._bypassing

    @property
    def number(self) -> int:
        """The number of the newest end."""
        return self._number

    def views(self, now: float) -> tuple[PoolView, ...]:
        """The member's own tickets, without limits, for times without a coordinator's view of the cluster."""
        by_pool: dict[PoolKey, list[_Own]] = {}
        for own in self._own.values():
            by_pool.setdefault(own.ticket.pool, []).append(own)
        return tuple(self._view(key, owns, now) for key, owns in by_pool.items())

    def _view(self, key: PoolKey, owns: Sequence[_Own], now: float) -> PoolView:
        flying, waiting = [one for one in owns if one.attempt], [one for one in owns if not one.attempt]
        return PoolView(
            key=key,
            account_name=None,
            in_flight=len(flying),
            bypassing=self._bypassing.get(key, 0),
            limit=self.limit_of(key),
            queued=len(waiting),
            breaker=BreakerState.CLOSED.value,
            blocked_for_s=0.0,
            meters=(),
            tickets=(
                *(
                    TicketView(one.ticket, RequestState.IN_FLIGHT, "", 0, one.history.attempts, one.waited_s)
                    for one in flying
                ),
                *(
                    TicketView(
                        one.ticket,
                        RequestState.BACKING_OFF if one.not_before > now else RequestState.QUEUED,
                        Reason.COORDINATOR.value,
                        place,
                        one.history.attempts,
                        one.waited_s + max(0.0, now - one.wait_began_at),
                    )
                    for place, one in enumerate(waiting, start=1)
                ),
            ),
        )

    # The driver's side ----------------------------------------------------------------------------------------------

    def submit(self, ticket: Ticket, settings: PoolSettings, now: float) -> None:
        """Ask for admission. Raises ContractError when the id is known."""
        if ticket.id in self._own:
            raise ContractError(f"{ticket.id}: submitted twice")
        for pool in [one.pool for one in ticket.endpoints] or [ticket.pool]:
            if self._settings.get(pool) != settings:
                self._settings[pool] = settings
                self._tell(Uses(pool, settings))
        own = self._own[ticket.id] = _Own(ticket, wait_began_at=ticket.arrived_at)
        self._deadlines.put(ticket.id, ticket.deadline_at)
        self.events.append(Submitted(at=now, ticket=ticket))
        if self._stopping:
            self._shed(own, Reason.STOPPING, now, come_back_s=_COME_BACK_S)
        else:
            self._tell(Arrived(ticket))

    def observe(self, attempt: Attempt, hints: Hints, *, answered: bool) -> None:
        """A response's head came."""
        own = self._own.get(attempt.ticket.id)
        if own is not None and own.attempt is attempt:
            self._tell(HeadCame(attempt.ticket.id, attempt.number, hints, answered))

    def settle(self, attempt: Attempt, result: AttemptResult, now: float) -> Verdict:
        """End an attempt, exactly once (ContractError on the second time), and judge what follows."""
        ticket = attempt.ticket
        own = self._own.get(ticket.id)
        if own is None or own.attempt is not attempt:
            raise ContractError(f"{ticket.id}: attempt {attempt.number} was settled already")
        if result.job is not None and (result.job.name in self.jobs or result.outcome.retryable):
            result = replace(result, job=None)
        spend, job = actual_spend(ticket, result), result.job
        if job is None:
            self.events.append(
                AttemptEnded(
                    at=now,
                    ticket_id=ticket.id,
                    pool=ticket.pool,
                    attempt=attempt.number,
                    outcome=result.outcome,
                    usage=actual_usage(ticket, result),
                    duration_s=max(0.0, now - attempt.admitted_at),
                    spend=spend,
                )
            )
        if len(ticket.endpoints) > 1 and not result.client_saw_bytes:
            result = as_block(result, ticket.deadline_at - now)
        pool = self._told(ticket.pool)
        settings = self._settings.get(ticket.pool)
        own.history, verdict = judge(
            settings.retry if settings else PoolSettings().retry,
            own.history,
            result,
            now,
            self._rng,
            owner=owner_of(result.outcome, ticket.deadline_at - now),
            shed_at=last_moment(ticket, now - attempt.admitted_at),
            provider_down=pool is not None and pool.provider_down,
            nobody_answered=pool is not None and pool.nobody_answered,
            stopping=self._stopping,
        )
        own.attempt = None
        self._number += 1
        ended = Ended(self._number, ticket.id, attempt.number, result, verdict)
        spend += Spend(calls=calls_of(result))
        self._remember(Spending(self._number, ticket.id, ticket.agent, ticket.group, ticket.budgets, spend, now, ended))
        self._tell(ended)
        if job is not None:
            self._forget(ticket.id)
            self.begin_job(RunningJob(job.name, ticket, attempt.number, attempt.admitted_at, now + job.lasts_s), now)
            return verdict
        match verdict:
            case Finished():
                end = "delivered" if result.outcome.kind is OutcomeKind.SUCCESS else "cancelled"
                self._end(own, now, end=end, reason=result.outcome.reason)
            case GiveUp(reason):
                end = "shed" if reason is Reason.ANEW else "gave up"
                self._end(own, now, end=end, reason=reason.value, last_outcome=result.outcome.reason)
            case Backoff(until, reason=why):
                own.not_before, own.wait_began_at = until, now
                self._deadlines.put(ticket.id, ticket.deadline_at)
                self.events.append(
                    BackedOff(
                        at=now, ticket_id=ticket.id, pool=ticket.pool, attempt=attempt.number, until=until, reason=why
                    )
                )
        return verdict

    def adopt(self, ticket: Ticket, job: Job, now: float) -> None:
        """Count a job whose request was not scheduled; the coordinator books its end."""
        if job.name not in self.jobs:
            self.begin_job(RunningJob(job.name, ticket, 1, now, now + job.lasts_s), now, is_new=True)

    def begin_job(self, job: RunningJob, now: float, *, is_new: bool = False) -> None:
        """Remember a job. `is_new`: this process did not admit the attempt."""
        self.events += job.begun(now) if is_new else [job.noted(now, job.until)]
        if (unseen := self.jobs.begin(job)) is not None:
            self._end_job(unseen, UNSEEN, now)

    def end_job(self, name: str, result: AttemptResult, now: float) -> None:
        """The end of a job was seen."""
        if (job := self.jobs.end(name)) is not None:
            self._end_job(job, result, now)

    def _end_job(self, job: RunningJob, result: AttemptResult, now: float) -> None:
        ticket, spend = job.ticket, actual_spend(job.ticket, result)
        self.events += job.ended(result, spend, now)
        self._number += 1
        spending = Spending(self._number, ticket.id, ticket.agent, ticket.group, ticket.budgets, spend, now)
        ended = Ended(self._number, ticket.id, job.attempt, result, Finished(), job=job.name, spending=spending)
        self._remember(replace(spending, ended=replace(ended, spending=None)))
        self._tell(ended)

    def cancel(self, ticket_id: str, now: float) -> bool:
        """The client of a waiting ticket went. False when the ticket is unknown or in flight."""
        own = self._own.get(ticket_id)
        if own is None:
            # The end was decided since the last poll; without a client nobody needs the decision.
            before = len(self._decisions)
            self._decisions = [one for one in self._decisions if _ticket_of(one).id != ticket_id]
            return len(self._decisions) < before
        if own.attempt is not None:
            return self._take_back(own.attempt, now)
        self._tell(Gone(ticket_id))
        self._end(own, now, end="cancelled", reason="client went")
        return True

    def call_off(self, ticket_id: str, now: float) -> bool:
        """A person wants a ticket of this process to end. False when the ticket is unknown."""
        own = self._own.get(ticket_id)
        if own is None:
            return False
        if own.attempt is not None:
            if self._take_back(own.attempt, now):
                self._decisions.append(Refused(ticket=own.ticket, cause=Cancel(ticket_id)))
            else:
                self.cancelled.append(own.attempt)
        else:
            self._tell(Gone(ticket_id))
            self._refuse(own, Cancel(ticket_id), now)
        return True

    def configure(self, settings_of: Callable[[PoolKey, str], PoolSettings | None]) -> None:
        """Profiles were changed."""
        for pool, before in self._settings.items():
            settings = settings_of(pool, before.profile)
            if settings is not None and settings != before:
                self._settings[pool] = settings
                self._tell(Uses(pool, settings))

    def bypass(self, pool: PoolKey, change: int) -> None:
        """Attempts that bypass the scheduler begin or end."""
        count = self._bypassing.get(pool, 0) + change
        if count < 0:
            raise ContractError(f"{pool}: more bypassing attempts ended than began")
        self._bypassing[pool] = count
        if not count:
            del self._bypassing[pool]
        self._tell(Bypassing(pool, count))

    def limit_of(self, pool: PoolKey) -> int:
        """The last known concurrency limit of the pool; 1 when the pool is unknown."""
        told = self._told(pool)
        return 1 if told is None else told.limit

    def close(self, now: float) -> None:
        """Admit nothing more: shed waiting and new tickets."""
        self._stopping = True
        for own in [one for one in self._own.values() if one.attempt is None]:
            self._tell(Gone(own.ticket.id))
            self._shed(own, Reason.STOPPING, now, come_back_s=_COME_BACK_S)

    def wake_up(self, slept_s: float) -> None:
        """The machine and the clients slept: waiting tickets may wait that much longer."""
        for own in self._own.values():
            ticket = own.ticket
            own.ticket = replace(
                ticket,
                arrived_at=ticket.arrived_at + slept_s,
                deadline_at=ticket.deadline_at + slept_s,
                shed_at=ticket.shed_at + slept_s,
            )
            own.wait_began_at += slept_s
            if own.attempt is None:
                self._deadlines.put(ticket.id, own.ticket.deadline_at)

    def poll(self, now: float) -> list[Admitted | Shed | Refused]:
        """The decisions since the last call. Sheds tickets past the deadline, because the clients give up."""
        for job in self.jobs.expired(now):
            self._end_job(job, UNSEEN, now)
        while self._deadlines.first_key <= now and (ticket_id := self._deadlines.first) is not None:
            self._tell(Gone(ticket_id))
            self._shed(self._own[ticket_id], Reason.DEADLINE, now, come_back_s=_COME_BACK_S)
        decisions, self._decisions = self._decisions, []
        return decisions

    @property
    def wakeup_at(self) -> float:
        """When the next ticket is to be shed, or the next job expires."""
        return min(self._deadlines.first_key, self.jobs.ends_at) if not self._decisions else -_NEVER

    # The coordinator's side -----------------------------------------------------------------------------------------

    def join(self) -> Join:
        """The complete report for a coordinator."""
        for (agent, group, budgets), (spend, at) in self._spent_alone.items():
            self._number += 1
            self._spent.append(Spending(self._number, "", agent, group, budgets, spend, at))
        self._spent_alone.clear()
        waiting, flying = [], []
        for own in self._own.values():
            if own.attempt is None:
                waiting.append(Waiting(own.ticket, own.history, own.not_before))
            else:
                flying.append(Flying(own.ticket, own.history, own.attempt.demand, own.attempt.admitted_at))
        return Join(
            waiting=tuple(waiting),
            flying=tuple(flying),
            spent=tuple(self._spent),
            uses=tuple(Uses(pool, settings) for pool, settings in self._settings.items()),
            bypassing=tuple(Bypassing(pool, count) for pool, count in self._bypassing.items()),
        )

    def was_kept(self, number: int, now: float) -> None:
        """Ends up to `number` outlive the coordinator; forget them some time later, since copies of them are older."""
        while self._spent and self._spent[0].number <= number and self._spent[0].at <= now - _REMEMBERED_S:
            self._spent.popleft()

    def hear(self, message: FromCoordinator, shift_s: float, now: float) -> None:
        """Take a message of the coordinator that has the tickets; `shift_s` turns the coordinator's clock into ours."""
        match message:
            case Admits(ticket_id):
                self._admit(message, now)
            case Sheds(ticket_id, reason=reason, come_back_s=come_back_s):
                if own := self._waiting(ticket_id):
                    self._shed(own, reason, now, come_back_s=come_back_s)
            case Refuses(ticket_id, cause=cause):
                if own := self._waiting(ticket_id):
                    if isinstance(cause, ActiveBlock):
                        cause = replace(cause, until=cause.until + shift_s)
                    self._refuse(own, cause, now)
            case Ends(ticket_id, attempt=number, called_off=called_off):
                own = self._own.get(ticket_id)
                if own and own.attempt and own.attempt.number == number:
                    if called_off:
                        self.call_off(ticket_id, now)
                    else:
                        self.superseded.append(own.attempt)
            case Tells(events):
                self.events += [shifted_event(event, shift_s) for event in events]
            case PoolsChanged(pools):
                self._pools.update((pool.key, pool) for pool in pools)
            case AccountsChanged(accounts):
                self.accounts = accounts
            case Welcome(pools, accounts=accounts):
                self._pools = {pool.key: pool for pool in pools}
                self.accounts = accounts

    def _admit(self, message: Admits, now: float) -> None:
        own = self._waiting(message.ticket_id)
        if own is None:
            return  # the ticket has ended here, and the coordinator gets a message about the end
        if own.ticket.pool != message.pool:
            own.ticket = replace(own.ticket, pool=message.pool)
        own.history = own.history.started()
        own.attempt = Attempt(
            ticket=own.ticket,
            number=message.attempt,
            admitted_at=now,
            demand=message.demand,
            in_flight=message.in_flight,
            is_probe=message.is_probe,
        )
        self._deadlines.drop(message.ticket_id)
        self.events.append(
            AttemptStarted(
                at=now,
                ticket_id=message.ticket_id,
                pool=message.pool,
                attempt=message.attempt,
                waited_s=self._end_wait(own, now),
                in_flight=message.in_flight,
            )
        )
        self._decisions.append(Admitted(own.attempt))

    # One by one -----------------------------------------------------------------------------------------------------

    def _tell(self, message: FromMember) -> None:
        if self.send is not None:
            self.send(message)

    def _take_back(self, attempt: Attempt, now: float) -> bool:
        """End an attempt whose admission is not fetched yet. False: fetched, so the request may have been sent."""
        unfetched = [one for one in self._decisions if isinstance(one, Admitted) and one.attempt is attempt]
        if not unfetched:
            return False
        self._decisions.remove(unfetched[0])
        self.settle(attempt, NOT_SENT, now)
        return True

    def _told(self, pool: PoolKey) -> PoolTold | None:
        """The state of a pool, also if the pool's account turned out to equal another account."""
        return self._pools.get(replace(pool, account=self.accounts.get(pool.account, pool.account)))

    def _waiting(self, ticket_id: str) -> _Own | None:
        own = self._own.get(ticket_id)
        return own if own is not None and own.attempt is None else None

    def _remember(self, spent: Spending) -> None:
        """Remember spending until the coordinator has kept the spending; of spending alone, only sums."""
        if not self.is_alone:
            self._spent.append(spent)
        else:
            whose = (spent.agent, spent.group, spent.budgets)
            before, _ = self._spent_alone.get(whose, (Spend(), 0.0))
            self._spent_alone[whose] = (before + spent.spend, spent.at)

    def _end_wait(self, own: _Own, now: float) -> float:
        waited_s = max(0.0, now - own.wait_began_at)
        own.waited_s += waited_s
        return waited_s

    def _shed(self, own: _Own, reason: Reason, now: float, *, come_back_s: float) -> None:
        self._end_wait(own, now)
        self._end(own, now, end="shed", reason=reason.value)
        self._decisions.append(Shed(own.ticket, reason, come_back_s))

    def _refuse(self, own: _Own, cause: Shortage | ActiveBlock | Cancel, now: float) -> None:
        self._end_wait(own, now)
        end = "refused"
        match cause:
            case Cancel():
                end, reason = "cancelled", "cancelled by a person"
            case ActiveBlock(reason=why):
                reason = f"{cause.why.value}: {why}"
            case Shortage(budget):
                reason = f"{Reason.BUDGET.value}: {budget.holder}"
            case _:
                assert_never(cause)
        self._end(own, now, end=end, reason=reason)
        self._decisions.append(Refused(ticket=own.ticket, cause=cause))

    def _forget(self, ticket_id: str) -> None:
        del self._own[ticket_id]
        self._deadlines.drop(ticket_id)

    def _end(self, own: _Own, now: float, *, end: str, reason: str, last_outcome: str = "") -> None:
        ticket = own.ticket
        self._forget(ticket.id)
        self.events.append(
            TicketEnded(
                at=now,
                ticket_id=ticket.id,
                pool=ticket.pool,
                end=end,
                reason=reason,
                attempts=own.history.attempts,
                ambiguous_resends=own.history.ambiguous_resends,
                waited_s=own.waited_s,
                last_outcome=last_outcome,
            )
        )


def _ticket_of(decision: Admitted | Shed | Refused) -> Ticket:
    return decision.attempt.ticket if isinstance(decision, Admitted) else decision.ticket
