"""The scheduler, the only writer of core state. Pure: takes `now` and an rng, returns decisions and events as values.

    submit ──► queued ──poll──► Admitted ──settle──► Finished | GiveUp          (the ticket ends)
                 ▲                             └───► Backoff ──┐
                 └──────────── same place ─────────────────────┘
    queued ──poll, at shed_at or when stopping──► Shed                          (the ticket ends)
    queued ──cancel──►                                                          (the ticket ends)
    queued ──a person's Cancel, then poll──► Refused                            (the ticket ends)
    settle, with a job──► the job runs ──end_job, or poll at its expiry──►      (the ticket ends)

Call `poll(now)` after any change of state, then arm one timer at `next_wakeup()`.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from msgspec.structs import replace

from hivemind_addon.kernel.budget import Budgets, actual_spend, calls_of, holders_of
from hivemind_addon.kernel.commands import CommandEffect, CommandHandler
from hivemind_addon.kernel.endpoints import Endpoints, Move
from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.jobs import UNSEEN, Jobs, RunningJob, read_jobs
from hivemind_addon.kernel.limits.learned import LearnedPool, NamedAccount, Saved, UnreadableError, read_saved
from hivemind_addon.kernel.limits.sharing import Sharing
from hivemind_addon.kernel.order.selector import Reservation
from hivemind_addon.kernel.overrides import Overrides
from hivemind_addon.kernel.pool import Pool, PoolSettings, PoolTold
from hivemind_addon.kernel.retry import History, Patience
from hivemind_addon.kernel.sliced_work import whole
from hivemind_addon.kernel.values.command import CommandResult, ForeseeWait, SchedulerCommand
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Refused, Shed, Verdict
from hivemind_addon.kernel.values.events import (
    AccountNamed,
    AttemptEnded,
    AttemptStarted,
    CommandDone,
    GuardTripped,
    MachineSlept,
    OddityNoted,
    OverridesStand,
    PoolsMerged,
    PriorityEnded,
    SchedulerEvent,
    Submitted,
    TicketEnded,
    WaitOverruled,
)
from hivemind_addon.kernel.values.snapshot import Counters, Snapshot
from hivemind_addon.kernel.values.spend import AccountState, Budget, Scope, Shortage, Spend
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    ContractError,
    Demand,
    Hints,
    Job,
    OutcomeKind,
    PoolKey,
    Ticket,
)

_NEVER = float("inf")
_PLENTY = 20
"""A limit or a budget is near when less is left than this many times the demand of a ticket."""


def _count(counts: Counter[str], event: SchedulerEvent) -> None:
    """Raise the counters of a snapshot."""
    match event:
        case Submitted():
            counts["tickets"] += 1
        case AttemptStarted():
            counts["attempts"] += 1
            counts["retries"] += event.attempt > 1
        case AttemptEnded():
            counts["throttled"] += event.outcome.kind is OutcomeKind.THROTTLED
            if event.usage is not None:
                counts["input_tokens"] += event.usage.total_input_tokens
                counts["output_tokens"] += event.usage.output_tokens
        case TicketEnded():
            counts[event.end.replace(" ", "_")] += 1
            counts["ambiguous_resends"] += event.ambiguous_resends
        case GuardTripped():
            counts["guard_trips"] += 1
        case WaitOverruled():
            counts["waits_overruled"] += 1


class Scheduler:
    """Admits tickets of many pools. O(log n) per call in the number of queued tickets of one pool."""

    def __init__(self, *, rng: random.Random) -> None:
        self._rng = rng
        self._stopping = False
        self._pools: dict[PoolKey, Pool] = {}
        self._pool_of_ticket: dict[str, Pool] = {}
        self._bypassing: Counter[PoolKey] = Counter()
        self._changed: dict[Pool, None] = {}
        """Pools to poll, in the order of their changes."""
        self._untold: dict[Pool, None] = {}
        """Pools polled since the last report of pool states."""
        self._wakeups: KeyedHeap[Pool] = KeyedHeap()
        self._events: list[SchedulerEvent] = []
        self._counts: Counter[str] = Counter()
        self._merged: dict[PoolKey, PoolKey] = {}
        """Pool → the pool of the first account that the pool became a part of."""
        self._learned: dict[PoolKey, LearnedPool] = {}
        """Learned in an earlier run, for pools that are not in use yet."""
        self._superseded: list[Attempt] = []
        self._sharing: dict[tuple[str, str], Sharing] = {}
        """By host and account."""
        self._patience = Patience()
        self._stamps = itertools.count(1)
        self._endpoints = Endpoints(self._pools, self._merged)
        self._overrides = Overrides()
        self._budgets = Budgets(emit=self.note, overrides=self._overrides)
        self._commands = CommandHandler(
            overrides=self._overrides, budgets=self._budgets, pools=self._pools, pool_of=self._pool_of_ticket.get
        )
        self._jobs = Jobs()
        self._refused: list[Refused] = []
        """Queued tickets that a person cancelled since the last poll."""
        self._cancelled_by_person: list[Attempt] = []
        self._canonical: dict[str, str] = {}
        self._account_by_name: dict[tuple[str, str], str] = {}
        self._named: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no ticket is queued and no attempt is in flight, bypassing attempts included."""
        return not self._pool_of_ticket and not self._bypassing

    def account_of(self, credential: str) -> str:
        """The account to use for a credential's hash: the first account that the same organisation used."""
        return self._canonical.get(credential, credential)

    def submit(
        self,
        ticket: Ticket,
        settings: PoolSettings,
        now: float,
        *,
        history: History | None = None,
        not_before: float | None = None,
    ) -> None:
        """Queue a ticket. `settings` configure a new pool. Raises ContractError if the ticket's id is known.

        `history`: the ended attempts of a ticket that waited at another process before. The ticket continues from
        there, not before `not_before` (monotonic instant; None: no backoff). The wait begins again: Submitted is noted,
        and Held if the ticket does not go at once.
        """
        self._open_pools(ticket, settings, now)
        if ticket.endpoints:
            was_at = ticket.pool if history is not None and history.attempts else None
            pool = self._endpoints.place(ticket, now, was_at=was_at)
            ticket = replace(ticket, pool=pool.key)
        else:
            pool = self._pool(ticket.pool, settings, now)
        self._pool_of_ticket[ticket.id] = pool
        self.note(Submitted(at=now, ticket=ticket))
        superseded = pool.submit(ticket, now, history=history, not_before=-_NEVER if not_before is None else not_before)
        if superseded is not None:
            self._superseded.append(superseded)
        self._changed[pool] = None

    def take_in_flight(
        self,
        ticket: Ticket,
        settings: PoolSettings,
        demand: Demand,
        history: History,
        now: float,
        *,
        admitted_at: float | None = None,
    ) -> Attempt:
        """Count an attempt that another process admitted; then `settle` it. Raises ContractError if the id is known.

        Slots, meters and budgets count the attempt at once, also beyond their limits: no gate is asked. The attempt
        teaches only limits that headers report. `demand`: the reservation; `history`: includes this start;
        `admitted_at`: monotonic instant, the start of the duration (None: now). Submitted and AttemptStarted are noted.
        """
        self._open_pools(ticket, settings, now)
        admitted_at = now if admitted_at is None else min(admitted_at, now)
        pool = self._pool(ticket.pool, settings, now)
        ticket = ticket if ticket.pool == pool.key else replace(ticket, pool=pool.key)
        if ticket.endpoints:
            self._endpoints.found(ticket, pool, now)
        self._pool_of_ticket[ticket.id] = pool
        self.note(Submitted(at=now, ticket=ticket))
        self._budgets.take_in_flight(ticket, admitted_at, now)
        attempt = pool.take_in_flight(ticket, demand, history, admitted_at, now)
        self._changed[pool] = None
        return attempt

    def _open_pools(self, ticket: Ticket, settings: PoolSettings, now: float) -> None:
        """Make the equal pools of a new ticket."""
        if ticket.id in self._pool_of_ticket:
            raise ContractError(f"{ticket.id}: submitted twice")
        for endpoint in ticket.endpoints:
            self._pool(endpoint.pool, settings, now)

    def _pool(self, key: PoolKey, settings: PoolSettings, now: float) -> Pool:
        """The pool of this key; made if not in use yet."""
        key = self._merged.get(key, key)
        if key in self._pools:
            return self._pools[key]
        if key.account in self._canonical:
            return self._pool(self._of_first_account(key), settings, now)
        pool = self._pools[key] = Pool(
            key=key,
            settings=settings,
            rng=self._rng,
            emit=self.note,
            budgets=self._budgets,
            overrides=self._overrides,
            sharing=self._sharing_of(key),
            patience=self._patience,
        )
        pool.capacity.bypassing = self._bypassing[key]
        if key in self._learned:
            pool.capacity.resume(self._learned.pop(key), now)
        return pool

    def _of_first_account(self, key: PoolKey) -> PoolKey:
        """The key of a new pool with the organisation's first account, which the caller does not know yet."""
        into = self._merged[key] = replace(key, account=self._canonical[key.account])
        if bypassing := self._bypassing.pop(key, 0):
            self._bypassing[into] += bypassing
            if into in self._pools:
                self._pools[into].capacity.bypassing = self._bypassing[into]
        return into

    def must_count(self, ticket: Ticket, now: float) -> bool:
        """Whether a limit or a budget is near, so that the tokens of a future ticket have to be counted.

        Otherwise an estimate that is off by a fifth leads to the same decisions.
        """
        for key in (ticket.pool, *(endpoint.pool for endpoint in ticket.endpoints)):
            pool = self._pools.get(self._merged.get(key, key))
            if pool is not None and pool.is_near(ticket.demand, _PLENTY, now):
                return True
        return self._budgets.is_near(ticket, _PLENTY)

    def configure(self, settings_of: Callable[[PoolKey, str], PoolSettings | None], now: float) -> None:
        """Apply changed profiles. `settings_of`: pool key and profile name → settings; None: no change."""
        for key, pool in self._pools.items():
            settings = settings_of(key, pool.settings.profile)
            if settings is not None and settings != pool.settings:
                pool.configure(settings, now)
                self._changed[pool] = None

    def _sharing_of(self, key: PoolKey) -> Sharing:
        """The limits that the pools of an account share."""
        return self._sharing.setdefault((key.host, key.account), Sharing(self._stamps))

    def poll(self, now: float) -> list[Admitted | Shed | Refused]:
        """Admit, shed and refuse the tickets that are due. A second call at the same `now` changes nothing."""
        while self._wakeups.first_key <= now and (due := self._wakeups.first) is not None:
            self._wakeups.drop(due)
            self._changed[due] = None
        if self._budgets.renewals.first_key <= now:
            self._look_again(self._budgets.renewed(now), now)
        for job in self._jobs.expired(now):
            self._end_job(job, UNSEEN, now)
        if self._overrides.ends_at <= now:
            for view in self._overrides.expire(now):
                self.note(PriorityEnded(at=now, priority=view))
            self._wake(self._commands.apply_overrides(now))
        has_equals = bool(self._endpoints.places) and not self._stopping
        if not (self._changed or self._refused or has_equals):
            return []
        decisions: list[Admitted | Shed | Refused] = [*self._refused]
        self._refused.clear()
        if has_equals:
            for flight in tuple(self._endpoints.refugees(now)):
                self._move(flight, now)
        decisions += self._poll_changed(now)
        if has_equals:
            while (move := self._endpoints.next_move(now)) is not None:
                self._move(move, now)
                decisions += self._poll_changed(now)
        for decision in decisions:
            if not isinstance(decision, Admitted):
                del self._pool_of_ticket[decision.ticket.id]
        return decisions

    def _poll_changed(self, now: float) -> list[Admitted | Shed | Refused]:
        decisions: list[Admitted | Shed | Refused] = []
        for pool in tuple(self._changed):
            if pool in self._changed:
                decisions.extend(self._poll_with_others(pool, now))
        return decisions

    def _move(self, move: Move, now: float) -> None:
        """Move a waiting ticket to an equal pool."""
        move.source.release(move.entry)
        move.target.receive(move.entry, now)
        self._pool_of_ticket[move.entry.ticket.id] = move.target
        self._endpoints.moved(move, now)
        self._wake((move.source, move.target))

    def _poll_with_others(self, pool: Pool, now: float) -> list[Admitted | Shed | Refused]:
        """Poll a pool; the pools of an account with waiting tickets are polled together, in one order."""
        together = dict.fromkeys((*map(self._pools.__getitem__, pool.capacity.sharing.waiting), pool))
        decisions: list[Admitted | Shed | Refused] = []
        for member in together:
            decisions += member.begin_poll(now, stopping=self._stopping)
        while (step := self._step_of(tuple(together), now)) is not None:
            decisions += step
        for member in together:
            member.end_poll(now)
            self._polled(member)
        return decisions

    def _polled(self, pool: Pool) -> None:
        """Set the pool's next wakeup."""
        self._changed.pop(pool, None)
        self._untold[pool] = None
        if pool.is_idle:
            pool.capacity.sharing.waiting.pop(pool.key, None)
        else:
            pool.capacity.sharing.waiting[pool.key] = None
        if pool.wakeup_at is None:
            self._wakeups.drop(pool)
        else:
            self._wakeups.put(pool, pool.wakeup_at)

    def _step_of(self, pools: Sequence[Pool], now: float) -> list[Admitted | Refused] | None:
        """Admit the first ticket that may go; None: all wait."""
        heads = [(key, number) for number, pool in enumerate(pools) if (key := pool.next_key(now)) is not None]
        reservations = list[Reservation]()
        for _, number in sorted(heads):
            step = pools[number].step(reservations, now)
            if step is not None:
                return step
        return None

    def next_wakeup(self) -> float | None:
        """The next instant at which `poll` may decide something if nothing else happens; later than the last poll."""
        at = min(
            self._wakeups.first_key,
            self._budgets.renewals.first_key,
            self._overrides.ends_at,
            self._endpoints.wakeup_at,
            self._jobs.ends_at,
        )
        return None if at == _NEVER else at

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None:
        """Learn from the head of a response; a settled attempt teaches nothing.

        `answered`: the head belongs to an answer (status below 400), so the prompt cache holds the prefix from now on.
        """
        ticket = attempt.ticket
        for oddity in hints.oddities:
            self.note(OddityNoted(at=now, pool=ticket.pool, ticket_id=ticket.id, what=oddity))
        pool = self._pool_of_ticket.get(ticket.id)
        if pool is None:
            return
        if hints.account is not None and hints.account != pool.account_name:
            pool = self._name_account(pool, hints.account, now)
        pool.observe(attempt, hints, now, answered=answered)
        self._learned_more(pool)

    def settle(self, attempt: Attempt, result: AttemptResult, now: float, *, judged: Verdict | None = None) -> Verdict:
        """End an attempt, exactly once (ContractError on the second call), and decide how the ticket continues.

        `judged`: the verdict of the process that has the client, which is applied and returned; else `retry.judge`
        decides.
        """
        ticket = attempt.ticket
        pool = self._pool_of_ticket.get(ticket.id)
        if pool is None:
            raise ContractError(f"{ticket.id}: attempt {attempt.number} was settled already")
        if result.job is not None and (result.job.name in self._jobs or result.outcome.retryable):
            result = replace(result, job=None)
        spend = actual_spend(ticket, result)
        if ticket.endpoints and not result.client_saw_bytes:
            result = self._endpoints.excuse(ticket, result, now)
        verdict = pool.settle(attempt, result, spend, now, stopping=self._stopping, judged=judged)
        if result.job is None:
            self._look_again(self._budgets.settle(ticket, spend + Spend(calls=calls_of(result)), now), now)
        else:
            job = self._begin_job(result.job, ticket, attempt.number, attempt.admitted_at, now)
            self.note(job.noted(now, job.until))
        if not isinstance(verdict, Backoff):
            del self._pool_of_ticket[ticket.id]
        self._learned_more(pool)
        return verdict

    def shortage(self, ticket: Ticket, now: float) -> Shortage | None:
        """The shortage that a hypothetical ticket would meet; changes nothing."""
        return self._budgets.foresee(ticket, now)

    def has_job(self, name: str) -> bool:
        """Whether a job runs."""
        return name in self._jobs

    def adopt(self, ticket: Ticket, job: Job, now: float) -> None:
        """Count a job whose request was not scheduled: in the budgets, also beyond their limits, and in all sums."""
        if job.name not in self._jobs:
            self._budgets.take_in_flight(ticket, now, now)
            for event in self._begin_job(job, ticket, 1, now, now).begun(now):
                self.note(event)

    def _begin_job(self, job: Job, ticket: Ticket, attempt: int, began_at: float, now: float) -> RunningJob:
        running = RunningJob(job.name, ticket, attempt, began_at, now + job.lasts_s)
        if (unseen := self._jobs.begin(running)) is not None:
            self._end_job(unseen, UNSEEN, now)
        return running

    def end_job(self, name: str, result: AttemptResult, now: float) -> None:
        """The end of a job was seen; counts once, however often it is seen."""
        if (job := self._jobs.end(name)) is not None:
            self._end_job(job, result, now)

    def _end_job(self, job: RunningJob, result: AttemptResult, now: float) -> None:
        spend = actual_spend(job.ticket, result)
        for event in job.ended(result, spend, now):
            self.note(event)
        self._look_again(self._budgets.settle(job.ticket, spend + Spend(calls=calls_of(result)), now), now)

    def export_jobs(self, now: float, wall: float) -> object:
        """The running jobs as plain JSON values, for `restore_jobs`. `wall`: `now` in epoch seconds."""
        return self._jobs.export(now, wall)

    def restore_jobs(self, data: object, now: float, wall: float) -> None:
        """Go on with the jobs of an earlier process, after `restore_budgets`."""
        for job in read_jobs(data, now, wall):
            self._budgets.take_over(job.ticket, job.began_at, now)
            self._jobs.begin(job)
            for event in job.begun(now):
                self.note(event)

    def _learned_more(self, pool: Pool) -> None:
        """Note that a pool learned something: if tickets of the account wait, the next ticket may be another."""
        if pool.is_at_rest and not pool.capacity.sharing.waiting:
            self._untold[pool] = None
        else:
            self._changed[pool] = None

    def cancel(self, ticket_id: str, now: float, *, is_proxys: bool = False) -> bool:
        """End a queued ticket whose client left. False: unknown, in flight or ended (settle the attempt instead).

        `is_proxys`: the client's proxy left, which shows nothing about the client's patience.
        """
        pool = self._pool_of_ticket.get(ticket_id)
        if pool is None or not pool.cancel(ticket_id, now, is_proxys=is_proxys):
            return False
        del self._pool_of_ticket[ticket_id]
        self._changed[pool] = None
        return True

    def command(self, command: SchedulerCommand, now: float) -> CommandResult:
        """Carry out a command. Then poll, and end the attempts that `drain_cancelled` returns."""
        effect = self._commands.carry_out(command, now)
        self._apply(effect, now)
        if effect.result.done and not isinstance(command, ForeseeWait):
            self.note(CommandDone(at=now, command=command, result=effect.result))
        return effect.result

    def _apply(self, effect: CommandEffect, now: float) -> None:
        self._look_again(effect.funded, now)
        self._wake(effect.woken)
        match effect.ended:
            case Refused():
                self._refused.append(effect.ended)
            case Attempt():
                self._cancelled_by_person.append(effect.ended)

    def _wake(self, pools: Iterable[Pool]) -> None:
        self._changed.update(dict.fromkeys(pools))

    def _look_again(self, ticket_ids: Iterable[str], now: float) -> None:
        """Queue tickets again that waited for a changed budget."""
        for ticket_id in ticket_ids:
            if pool := self._pool_of_ticket.get(ticket_id):
                pool.look_again(ticket_id, now)
                self._changed[pool] = None

    def close(self, now: float) -> None:  # noqa: ARG002  every writer takes `now`
        """Stop admitting. The next polls shed queued tickets, and tickets submitted later at once."""
        self._stopping = True
        self._endpoints.wakeup_at = _NEVER  # no ticket moves any more
        self._changed.update(dict.fromkeys(self._pools.values()))

    def drain_superseded(self) -> list[Attempt]:
        """Attempts to end and settle now, since the last call, because their clients sent the request again."""
        superseded, self._superseded = self._superseded, []
        return superseded

    def drain_cancelled(self) -> list[Attempt]:
        """Attempts that a person cancelled since the last call. End and settle each as CANCELLED."""
        called_off, self._cancelled_by_person = self._cancelled_by_person, []
        return called_off

    def wake_up(self, slept_s: float, now: float) -> None:
        """Note that the machine slept until now. `now` includes the sleep, so knowledge of the provider is older.

        The clients slept too, so their deadlines move by the same time; all pools start small.
        """
        self.note(MachineSlept(at=now, slept_s=slept_s))
        for pool in self._pools.values():
            pool.wake_up(slept_s, now)
        self._changed.update(dict.fromkeys(self._pools.values()))

    def export(self, now: float = 0.0, wall: float = 0.0) -> dict[str, object]:
        """The learned state that outlives a run, as plain JSON values, for `restore`.

        `wall`: `now` in epoch seconds, for the age of the limits; 0: unknown.
        """
        named = self._account_by_name.items()
        return Saved(
            pools=(
                *(pool.capacity.learned.as_of(pool.answered_s(now), wall) for pool in self._pools.values()),
                *self._learned.values(),
            ),
            accounts=tuple(NamedAccount(host, name, account) for (host, name), account in named),
            same_account=self._canonical,
            patience=self._patience.times,
        ).to_json()

    def restore(self, data: object, now: float, wall: float = 0.0) -> None:
        """Take over exported state before the first submit. Unreadable state is left out and noted as an oddity.

        `wall`: `now` in epoch seconds; 0: the limits are as good as new.
        """
        try:
            saved = read_saved(data)
        except UnreadableError as error:
            self.note(OddityNoted(at=now, pool=None, ticket_id=None, what=f"saved state is not used: {error}"))
            return
        self._learned.update((pool.key, pool.aged(wall)) for pool in saved.pools)
        self._account_by_name.update(((named.host, named.name), named.account) for named in saved.accounts)
        self._canonical.update(saved.same_account)
        self._patience.times.update(saved.patience)
        self._named.update(self._account_by_name.values(), self._canonical)

    def bypass(self, key: PoolKey, change: int) -> None:
        """Count attempts that bypass the scheduler after guard trips (+1 begins, -1 ends); they count as in flight."""
        key = self._merged.get(key, key)
        bypassing = self._bypassing[key] + change
        if bypassing < 0:
            raise ContractError(f"{key}: more bypassing attempts ended than began")
        self._bypassing[key] = bypassing
        if not bypassing:
            del self._bypassing[key]
        if key in self._pools:
            self._pools[key].capacity.bypassing = bypassing
            self._changed[self._pools[key]] = None

    def restore_budgets(self, standings: Sequence[AccountState], now: float) -> None:
        """Count the spending of an earlier process, once. Unreadable accounts are left out and noted as oddities."""
        self._oddities(self._budgets.restore(standings, now), now)

    def book(
        self, budgets: Sequence[Budget], spend: Spend, age_s: float, now: float, *, agent: str = "", group: str = ""
    ) -> None:
        """Count the spending of another process `age_s` ago; a negative amount takes presumed spending back.

        `budgets`: the budgets that paid for the ticket; `agent` and `group`: the holders, whose budgets from run time
        count the spending too.
        """
        holders = holders_of(agent, group) if agent else [(Scope.EVERYONE, "")]
        self._look_again(self._budgets.book(budgets, holders, spend, age_s, now), now)

    def share_budgets(self, share: float, now: float) -> None:
        """Allow only this share (0 < share ≤ 1) of the rest of each budget to be spent here from now on.

        The share also holds for accounts that are restored or opened later, and for new periods.
        """
        self._look_again(self._budgets.share(share), now)

    def standings(self, now: float) -> tuple[AccountState, ...]:
        """Every account in the present period, without reservations, for another process's `restore_budgets`."""
        return self._budgets.standings(now)

    def count_in(self, standings: Sequence[AccountState], now: float) -> None:
        """Add the spending in the present periods from before the budgets were set."""
        self._budgets.count_in(standings, now)

    def export_overrides(self, now: float, wall: float) -> object:
        """The overrides that stand, as plain JSON values, for `restore_overrides`. `wall`: `now` in epoch seconds."""
        return self._overrides.export(now, wall)

    def restore_overrides(self, data: object, now: float, wall: float) -> None:
        """Take over exported overrides, and note the ones that stand. Unreadable overrides are noted as oddities."""
        self._oddities(self._overrides.restore(data, now, wall), now)
        self._wake(self._commands.apply_overrides(now))
        self._apply(self._commands.review_budgets(now), now)
        orders = self._overrides
        pauses, caps, priorities, given = orders.pauses, orders.caps, orders.priorities(now), orders.budgets
        if pauses or caps or priorities or given:
            self.note(OverridesStand(at=now, pauses=pauses, caps=caps, priorities=priorities, given=given))

    def _oddities(self, oddities: Sequence[str], now: float) -> None:
        for oddity in oddities:
            self.note(OddityNoted(at=now, pool=None, ticket_id=None, what=oddity))

    @property
    def same_accounts(self) -> Mapping[str, str]:
        """Account → the first account of the same organisation. Read only; grows."""
        return self._canonical

    def pools_told(self) -> tuple[PoolTold, ...]:
        """Report the state of each pool, for a process that has clients of the pool."""
        self._untold.clear()
        return tuple(pool.told for pool in self._pools.values())

    def drain_pools_told(self) -> list[PoolTold]:
        """Report the states of pools polled since the last report of either kind; O(1) where there are none."""
        told = [pool.told for pool in self._untold if self._pools.get(pool.key) is pool]
        self._untold.clear()
        return told

    def limit_of(self, key: PoolKey) -> int:
        """The pool's last concurrency limit; 1 if the pool is unknown."""
        pool = self._pools.get(self._merged.get(key, key))
        return 1 if pool is None else pool.capacity.limit

    def note(self, event: SchedulerEvent) -> None:
        """Append an event, also from outside (a guard trip, an oddity), to the events in order."""
        self._events.append(event)
        _count(self._counts, event)

    def drain_events(self) -> list[SchedulerEvent]:
        """Events since the last call, oldest first. The caller owns the list."""
        events, self._events = self._events, []
        return events

    def snapshot(self, now: float, *, most_queued: int | None = None) -> Snapshot:
        """The state at `now`; of each pool's waiting tickets at most the first `most_queued`."""
        return whole(self.snapshot_in_parts(lambda: now, most_queued=most_queued))

    def snapshot_in_parts(
        self, clock: Callable[[], float], *, most_queued: int | None = None
    ) -> Generator[None, None, Snapshot]:
        """The same, pool by pool, each at one instant; the common parts at the end."""
        pools = []
        for pool in list(self._pools.values()):
            view = yield from pool.view_in_parts(clock, most_queued=most_queued)
            if self._pools.get(pool.key) is pool:  # else merged into another pool meanwhile
                pools.append(view)
            yield
        now = clock()
        return Snapshot(
            at=now,
            stopping=self._stopping,
            pools=tuple(pools),
            counters=Counters(**{name: self._counts[name] for name in Counters.__struct_fields__}),
            budgets=self._budgets.views(now),
            priorities=self._overrides.priorities(now),
            given=self._overrides.budgets,
            pauses=self._overrides.pauses,
            caps=self._overrides.caps,
        )

    def _name_account(self, pool: Pool, name: str, now: float) -> Pool:
        """Note the organisation of an account; the first account stands for later ones. Returns the pool to use."""
        account = pool.key.account
        first = self._account_by_name.setdefault((pool.key.host, name), account)
        # An account that was named before stays, also under a new name: no circles.
        if account not in self._named and first != account:
            self._canonical[account] = first
            same = [key for key in self._pools if (key.host, key.account) == (pool.key.host, account)]
            for key in same:
                self._merge(key, replace(key, account=first), now)
            pool = self._pools[self._merged.get(pool.key, pool.key)]
        self._named.add(account)
        if pool.account_name is None:
            pool.account_name = name
            self.note(AccountNamed(at=now, pool=pool.key, name=name))
        return pool

    def _merge(self, key: PoolKey, into: PoolKey, now: float) -> None:
        """Merge a pool into the pool of another account, which proved to be the same account."""
        pool = self._pools.pop(key)
        self._changed.pop(pool, None)
        self._untold.pop(pool, None)
        self._wakeups.drop(pool)
        pool.capacity.sharing.waiting.pop(key, None)
        self._merged[key] = into
        self._endpoints.merged(key, into)
        if bypassing := self._bypassing.pop(key, 0):
            self._bypassing[into] += bypassing
        target = self._pools.setdefault(into, pool)
        if target is pool:
            pool.rename(into, self._sharing_of(into), now)
        else:
            taken = target.take_over(pool, now)
            self._pool_of_ticket.update(dict.fromkeys((entry.ticket.id for entry in taken), target))
        target.capacity.bypassing = self._bypassing[into]
        self._overrides.inherit(into, merged=key)
        target.apply_overrides(now)
        self._changed[target] = None
        self.note(PoolsMerged(at=now, pool=into, merged=key))
