"""One scheduler for the tickets of many members: in the elected coordinator, or in a member that is alone.

A *join* replaces all earlier knowledge of a member: the announced tickets are the truth, and spending is counted once
for each end, by the end's number. A silent member is *lost*: the coordinator withdraws the waiting tickets, ends the
attempts in flight as cancelled, and presumes them spent until the member comes back and reports.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from dataclasses import replace as replaced

from msgspec.structs import replace

from hivemind_addon.kernel.budget import actual_spend, calls_of
from hivemind_addon.kernel.pool import PoolSettings, PoolTold
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import CommandResult, SchedulerCommand
from hivemind_addon.kernel.values.decision import ActiveBlock, Admitted, Backoff, Refused, Shed
from hivemind_addon.kernel.values.events import (
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    BudgetBooked,
    Event,
    Held,
    JobNoted,
    MachineSlept,
    Moved,
    OddityNoted,
    Submitted,
    Superseded,
    TicketEnded,
)
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Demand, Outcome, OutcomeKind, PoolKey, Ticket
from hivemind_addon.plugins.cluster.limit_share import scaled_hints, scaled_learned, scaled_settings
from hivemind_addon.plugins.cluster.messages import (
    AccountsChanged,
    Admits,
    Arrived,
    Bypassing,
    Commanded,
    Ended,
    Ends,
    Flights,
    FromCoordinator,
    FromMember,
    Gone,
    HeadCame,
    Join,
    Kept,
    KnownMember,
    Leaves,
    PoolsChanged,
    Refuses,
    Sheds,
    Spending,
    Tells,
    Uses,
    Welcome,
)
from hivemind_addon.proxy.api.replies import in_words

_OF_OWNER = (Held, Moved, Superseded, OddityNoted)
"""Events of a ticket that go to the ticket's member; the member makes the others itself."""
_UNTOLD = (Submitted, AttemptStarted, AttemptEnded, JobNoted, BackedOff, TicketEnded, BudgetBooked, MachineSlept)
"""Events that each member makes itself, or that concern no member."""
_ASTRAY_S = 60.0
"""A lost member is alone or dead; after this time the coordinator takes the member for dead."""
_PROVED_S = 60.0
"""How long the concurrency that a provider took remains a good guess."""
_JOB_GRACE_S = 600.0
"""A job expires at its member, which books it; here so much later, in case the member is dead."""
_MOST_PRESUMED = 100
"""The most lost members whose presumed spending is remembered."""
_MOST_REMEMBERED = 1000
"""The most members whose numbers are remembered, absent members included."""
NOT_SENT = AttemptResult(Outcome(OutcomeKind.CANCELLED, "client went before it was sent"), charged=Demand(requests=0))
_LOST = AttemptResult(Outcome(OutcomeKind.CANCELLED, "its proxy is lost"), client_saw_bytes=True)
"""The provider may have billed the attempt, and the state of the client is unknown."""


@dataclass(slots=True, eq=False)
class _Account:
    """The coordinator's knowledge of a member."""

    shift_s: float = 0.0
    """Added to an instant of the member's clock, gives the instant on the coordinator's clock."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Ticket → number of attempts so far."""
    flying: dict[str, Attempt] = field(default_factory=dict)
    bypassing: dict[PoolKey, int] = field(default_factory=dict)


class Coordinator:
    """Runs the scheduler of the whole cluster. The caller polls after any call, and again at `next_wakeup`."""

    def __init__(
        self,
        *,
        epoch: int,
        scheduler: Scheduler,
        send: Callable[[str, FromCoordinator], None],
        share: float = 1.0,
        overhear: Callable[[Event], None] = lambda event: None,  # noqa: ARG005
    ) -> None:
        """`send`: sends to a member; `overhear`: receives every event of the cluster."""
        self.epoch = epoch
        self.scheduler = scheduler
        self.share = share
        self.split_until = -float("inf")
        """Attempts not counted here may have caused the refusals of attempts that were sent before this instant."""
        self.is_dirty = True
        """Whether there is news that has to outlive this process."""
        self._send = send
        self._overhear = overhear
        self._members: dict[str, _Account] = {}
        self._owners: dict[str, str] = {}
        """Ticket → member."""
        self._settings: dict[PoolKey, PoolSettings] = {}
        self._counted: dict[str, int] = {}
        """Member → the number of the newest counted end."""
        self._kept: dict[str, int] = {}
        """The same for ends that outlive this process."""
        self._keeping: dict[str, int] = {}
        self._presumed: dict[str, dict[str, Spending]] = {}
        """Lost member → the presumed spending, by ticket."""
        self._absent: dict[str, tuple[Flights, ...]] = {}
        """Member that has not joined yet → the attempts in flight under an earlier coordinator."""
        self._astray: dict[str, float] = {}
        """Lost member that may send on its own → the instant until which this counts."""
        self._proved: dict[PoolKey, int] = {}
        """The concurrency that a pool took lately under another coordinator."""
        self._told: dict[PoolKey, PoolTold] = {}
        self._told_accounts: dict[str, str] = {}
        self._version = 0

    def __repr__(self) -> str:
        return f"<Coordinator of epoch {self.epoch}: {len(self._owners)} tickets of {len(self._members)} members>"

    # What lasts -------------------------------------------------------------------------------------------------

    def restore(self, kept: Kept, age_s: float, now: float) -> None:
        """Begin with state from `age_s` ago: this coordinator's share of the learned limits, and orders and budgets."""
        if kept.learned is not None:
            learned = kept.learned if self.share == 1 else scaled_learned(kept.learned, self.share)
            self.scheduler.restore(learned, now)
        if kept.orders is not None:
            self.scheduler.restore_overrides(kept.orders, now, age_s)
        self.scheduler.restore_budgets([replace(one, age_s=one.age_s + age_s) for one in kept.standings], now)

    def succeed(self, kept: Kept, age_s: float, now: float) -> None:
        """Take over from the coordinator that has kept this state, and expect the same members."""
        self.restore(kept, age_s, now)
        self._version = kept.version
        if age_s < _PROVED_S:
            self._proved = dict(kept.limits)
        for name, member in kept.members.items():
            self._counted[name] = self._kept[name] = member.counted
            if member.presumed:
                self._presumed[name] = {one.ticket_id: replace(one, at=now - age_s - one.at) for one in member.presumed}
            if member.is_here:
                self._absent[name] = member.flights
                for flights in member.flights:
                    self.scheduler.bypass(flights.pool, flights.count)

    @property
    def absent(self) -> Iterable[str]:
        """Members that an earlier coordinator knew and that have not joined yet."""
        return self._absent

    def keep(self, now: float) -> Kept:
        """The state that has to outlive this process; the caller calls `was_kept` once the engine has the state."""
        self.is_dirty = False
        self._version += 1
        self._keeping = dict(self._counted)
        members = {name: KnownMember(counted, is_here=False) for name, counted in self._counted.items()}
        for name, presumed in self._presumed.items():
            aged = tuple(replace(one, at=now - one.at) for one in presumed.values())
            members[name] = KnownMember(self._counted.get(name, 0), presumed=aged, is_here=False)
        for name, flights in self._absent.items():
            members[name] = KnownMember(self._counted.get(name, 0), flights)
        for name, member in self._members.items():
            count = Counter(attempt.ticket.pool for attempt in member.flying.values())
            flights = tuple(Flights(pool, number) for pool, number in count.items())
            members[name] = KnownMember(self._counted.get(name, 0), flights)
        return Kept(
            epoch=self.epoch,
            version=self._version,
            learned=self.scheduler.export(),
            orders=self.scheduler.export_overrides(now, 0.0),
            standings=self.scheduler.standings(now),
            members=members,
            limits=tuple((told.key, told.limit) for told in self.scheduler.pools_told()),
        )

    def was_kept(self) -> None:
        """The engine has the state from `keep`."""
        self._kept = self._keeping

    @property
    def version(self) -> int:
        """The version of the newest state from `keep`."""
        return self._version

    def kept_number(self, name: str) -> int:
        """The number of the member's newest end that outlives this process."""
        return self._kept.get(name, 0)

    # Members ------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> dict[str, tuple[int, int]]:
        """Members that have joined → the numbers of tickets waiting and in flight."""
        return {name: (len(member.waiting), len(member.flying)) for name, member in self._members.items()}

    def join(self, name: str, join: Join, shift_s: float, now: float) -> None:
        """A member announces all tickets. Other tickets that were known of the member are over."""
        self.is_dirty = True
        before = self._members.pop(name, None) or _Account()
        before.shift_s = shift_s
        member = self._members[name] = _Account(shift_s=shift_s)
        self._forget_absent(name)
        if self._astray.pop(name, None) is not None:
            self.split_until = now
        for uses in join.uses:
            self._use(uses, now)
        self._count(name, join.spent, before, shift_s, now)
        # While alone, the member may have sent a ticket again whose earlier attempt is in flight here.
        announced = {flight.ticket.id: flight.history.attempts for flight in join.flying}
        for ticket_id, attempt in before.flying.items():
            if announced.get(ticket_id) == attempt.number:
                member.flying[ticket_id] = attempt
            else:
                self._end_unseen(attempt, NOT_SENT, now)
        announced = {waits.ticket.id: waits.history.attempts for waits in join.waiting}
        for ticket_id, attempts in before.waiting.items():
            if announced.get(ticket_id) == attempts:
                member.waiting[ticket_id] = attempts
            else:
                self._withdraw(ticket_id, now)
        for flight in join.flying:
            if flight.ticket.id not in member.flying:
                ticket = shifted(flight.ticket, shift_s)
                settings = self._settings_of(ticket.pool)
                attempt = self.scheduler.take_in_flight(
                    ticket, settings, flight.demand, flight.history, now, admitted_at=flight.admitted_at + shift_s
                )
                member.flying[ticket.id] = attempt
                self._owners[ticket.id] = name
        for waits in join.waiting:
            if waits.ticket.id not in member.waiting:
                ticket = shifted(waits.ticket, shift_s)
                not_before = waits.not_before + shift_s
                settings = self._settings_of(ticket.pool)
                self.scheduler.submit(ticket, settings, now, history=waits.history, not_before=not_before)
                member.waiting[ticket.id] = waits.history.attempts
                self._owners[ticket.id] = name
        self._bypass_all(before, -1)
        for one in join.bypassing:
            self._bypass(member, one)
        self._send(name, Welcome(self.scheduler.pools_told(), dict(self.scheduler.same_accounts)))

    def lose(self, name: str, now: float) -> None:
        """A member has become silent."""
        self._forget_absent(name)
        self._astray = {one: until for one, until in self._astray.items() if until > now} | {name: now + _ASTRAY_S}
        member = self._members.pop(name, None)
        if member is None:
            return
        self.is_dirty = True
        for ticket_id in member.waiting:
            self._withdraw(ticket_id, now)
        presumed = {}
        for ticket_id, attempt in member.flying.items():
            ticket = attempt.ticket
            spend = actual_spend(ticket, _LOST) + Spend(calls=calls_of(_LOST))
            presumed[ticket_id] = Spending(0, ticket_id, ticket.agent, ticket.group, ticket.budgets, spend, now)
            self._end_unseen(attempt, _LOST, now)
        if presumed:
            self._presumed[name] = presumed
            if len(self._presumed) > _MOST_PRESUMED:
                del self._presumed[next(iter(self._presumed))]
        self._bypass_all(member, -1)

    def leave(self, name: str, now: float) -> None:
        """A member has ended, in order."""
        self.lose(name, now)
        self._presumed.pop(name, None)
        del self._astray[name]

    def hear(self, name: str, message: FromMember, now: float) -> None:
        """Take a message of a member that has joined. Messages come in order."""
        member = self._members.get(name)
        if member is None:
            return
        self.is_dirty = True
        match message:
            case Arrived(ticket):
                ticket = shifted(ticket, member.shift_s)
                self.scheduler.submit(ticket, self._settings_of(ticket.pool), now)
                member.waiting[ticket.id] = 0
                self._owners[ticket.id] = name
            case HeadCame(ticket_id, attempt=number, hints=hints, answered=answered):
                attempt = member.flying.get(ticket_id)
                if attempt is not None and attempt.number == number:
                    self.scheduler.observe(attempt, scaled_hints(hints, self.share), now, answered=answered)
            case Ended():
                self._end(name, member, message, now)
            case Gone(ticket_id):
                if attempt := member.flying.pop(ticket_id, None):
                    self._end_unseen(attempt, NOT_SENT, now)
                elif ticket_id in member.waiting:
                    del member.waiting[ticket_id]
                    self._owners.pop(ticket_id, None)
                    self.scheduler.cancel(ticket_id, now)
            case Uses():
                self._use(message, now)
            case Bypassing():
                self._bypass(member, message)
            case Commanded(command):
                self.scheduler.command(command, now)
            case Leaves():
                self.leave(name, now)

    def command(self, command: SchedulerCommand, now: float) -> CommandResult:
        """Carry out a person's command."""
        self.is_dirty = True
        return self.scheduler.command(command, now)

    # Decisions ----------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> None:
        """Make the decisions that are due, and send them to the members."""
        for decision in self.scheduler.poll(now):
            ticket = decision.attempt.ticket if isinstance(decision, Admitted) else decision.ticket
            name = self._owners.get(ticket.id)
            if name is None:  # the ticket is gone: cancelled by a person, or withdrawn
                if isinstance(decision, Admitted):
                    self.scheduler.settle(decision.attempt, NOT_SENT, now)
                continue
            member = self._members[name]
            member.waiting.pop(ticket.id, None)
            if isinstance(decision, Admitted):
                attempt = decision.attempt
                member.flying[ticket.id] = attempt
                told: FromCoordinator = Admits(
                    ticket_id=ticket.id,
                    attempt=attempt.number,
                    pool=ticket.pool,
                    demand=attempt.demand,
                    in_flight=attempt.in_flight,
                    is_probe=attempt.is_probe,
                )
            else:
                del self._owners[ticket.id]
                told = self._ended_by_us(decision, member)
            self._send(name, told)
        for attempt in self.scheduler.drain_superseded():
            self._call_end(attempt, called_off=False)
        for attempt in self.scheduler.drain_cancelled():
            self._call_end(attempt, called_off=True)
        self._route_events()
        self._tell_state()

    def next_wakeup(self) -> float | None:
        """The instant at which `poll` has work even without news."""
        return self.scheduler.next_wakeup()

    def _ended_by_us(self, decision: Shed | Refused, member: _Account) -> FromCoordinator:
        ticket_id = decision.ticket.id
        if isinstance(decision, Shed):
            return Sheds(ticket_id, decision.reason, decision.come_back_s)
        cause = decision.cause
        if isinstance(cause, ActiveBlock):
            cause = replace(cause, until=cause.until - member.shift_s)
        return Refuses(ticket_id, cause)

    def _call_end(self, attempt: Attempt, *, called_off: bool) -> None:
        name = self._owners.get(attempt.ticket.id)
        if name is not None:
            self._send(name, Ends(attempt.ticket.id, attempt.number, called_off))

    def _route_events(self) -> None:
        """Send each event to the member of the ticket, or, without a ticket, to all members."""
        for_member: dict[str, list[Event]] = {}
        for event in map(in_words, self.scheduler.drain_events()):
            self._overhear(event)
            if isinstance(event, _UNTOLD):
                continue
            ticket_id = getattr(event, "ticket_id", None)
            if ticket_id is None:
                for name in self._members:
                    for_member.setdefault(name, []).append(event)
            elif isinstance(event, _OF_OWNER) and (owner := self._owners.get(ticket_id)):
                for_member.setdefault(owner, []).append(event)
        for name, events in for_member.items():
            shift_s = -self._members[name].shift_s
            self._send(name, Tells(tuple(shifted_event(event, shift_s) for event in events)))

    def _tell_state(self) -> None:
        """Send changes in pools and accounts to all members."""
        changed = []
        for pool in self.scheduler.drain_pools_told():
            before = self._told.get(pool.key)
            if before is None or replace(before, in_flight=pool.in_flight) != pool:
                self._told[pool.key] = pool
                changed.append(pool)
        if changed:
            for name in self._members:
                self._send(name, PoolsChanged(tuple(changed)))
        if len(self.scheduler.same_accounts) != len(self._told_accounts):
            self._told_accounts = dict(self.scheduler.same_accounts)
            for name in self._members:
                self._send(name, AccountsChanged(self._told_accounts))

    # One by one -----------------------------------------------------------------------------------------------------

    def _end(self, name: str, member: _Account, ended: Ended, now: float) -> None:
        if ended.job:
            if self.scheduler.has_job(ended.job):
                self.scheduler.end_job(ended.job, ended.result, now)
            elif (spending := ended.spending) is not None:
                self._book(spending, spending.spend, now - spending.at - member.shift_s, now)
            self._counted[name] = max(ended.number, self._counted.get(name, 0))
            return
        attempt = member.flying.get(ended.ticket_id)
        if attempt is None or attempt.number != ended.attempt:
            return
        del member.flying[ended.ticket_id]
        verdict = ended.verdict
        if isinstance(verdict, Backoff):
            verdict = Backoff(verdict.until + member.shift_s, verdict.reason)
            member.waiting[ended.ticket_id] = ended.attempt
        else:
            self._owners.pop(ended.ticket_id, None)
        by_others = attempt.admitted_at < self.split_until or any(until > now for until in self._astray.values())
        result = replace(ended.result, by_others=True) if by_others else ended.result
        if (job := result.job) is not None:
            result = replace(result, job=replace(job, lasts_s=job.lasts_s + _JOB_GRACE_S))
        self.scheduler.settle(attempt, result, now, judged=verdict)
        self._counted[name] = max(ended.number, self._counted.get(name, 0))

    def _end_unseen(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        self._owners.pop(attempt.ticket.id, None)
        self.scheduler.settle(attempt, result, now)

    def _withdraw(self, ticket_id: str, now: float) -> None:
        self._owners.pop(ticket_id, None)
        self.scheduler.cancel(ticket_id, now, is_proxys=True)

    def _count(self, name: str, spent: Iterable[Spending], before: _Account, shift_s: float, now: float) -> None:
        """Book the member's spending that is not counted yet, and take back the presumed spending."""
        for one in self._presumed.pop(name, {}).values():
            self._book(one, Spend() - one.spend, now - one.at, now)
        counted = self._counted.get(name, 0)
        for one in spent:
            if one.number <= counted:
                continue
            self._counted[name] = one.number
            is_known = one.ticket_id in before.flying
            if one.ended is not None and (is_known or self.scheduler.has_job(one.ended.job)):
                self._end(name, before, one.ended, now)
            else:
                self._book(one, one.spend, now - one.at - shift_s, now)
        while len(self._counted) > _MOST_REMEMBERED:
            gone = next((one for one in self._counted if one not in self._members and one not in self._absent), None)
            if gone is None:
                break
            del self._counted[gone]

    def _book(self, one: Spending, spend: Spend, age_s: float, now: float) -> None:
        self.scheduler.book(one.budgets, spend, max(0.0, age_s), now, agent=one.agent, group=one.group)

    def _use(self, uses: Uses, now: float) -> None:
        settings = scaled_settings(uses.settings, self.share)
        concurrency = settings.concurrency
        proved = min(self._proved.get(uses.pool, 0), concurrency.maximum)
        if proved > concurrency.initial:
            settings = replaced(settings, concurrency=replaced(concurrency, initial=proved))
        before = self._settings.get(uses.pool)
        self._settings[uses.pool] = settings
        if before is not None and before != settings:
            self.scheduler.configure(lambda key, _: self._settings.get(key), now)

    def _settings_of(self, pool: PoolKey) -> PoolSettings:
        return self._settings.get(pool) or PoolSettings()

    def _bypass(self, member: _Account, told: Bypassing) -> None:
        change = told.count - member.bypassing.get(told.pool, 0)
        if change:
            member.bypassing[told.pool] = told.count
            self.scheduler.bypass(told.pool, change)

    def _bypass_all(self, member: _Account, sign: int) -> None:
        for pool, count in member.bypassing.items():
            if count:
                self.scheduler.bypass(pool, sign * count)

    def _forget_absent(self, name: str) -> None:
        for flights in self._absent.pop(name, ()):
            self.scheduler.bypass(flights.pool, -flights.count)


def shifted(ticket: Ticket, shift_s: float) -> Ticket:
    """The ticket with instants on another clock."""
    if not shift_s:
        return ticket
    return replace(
        ticket,
        arrived_at=ticket.arrived_at + shift_s,
        deadline_at=ticket.deadline_at + shift_s,
        shed_at=ticket.shed_at + shift_s,
    )


def shifted_event(event: Event, shift_s: float) -> Event:
    """The event with instants on another clock."""
    if not shift_s:
        return event
    changes = {"at": event.at + shift_s}
    if (until := getattr(event, "until", None)) is not None:
        changes["until"] = until + shift_s
    return replace(event, **changes)
