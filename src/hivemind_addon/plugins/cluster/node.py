"""A proxy of a cluster: in the place of a scheduler for its driver, and whichever role it has for the others.

    JOINING ──welcomed──► MEMBER ──────────────┐
       ▲ ▲                  │ coordinator silent│
       │ └──another lease───┼───────────────────┤
       │                    ▼                   ▼
    COORDINATOR ◄──leased── any        ALONE, after `alone_after_s` without a coordinator
       │                                        │
       └── lease not renewed: admits nothing ───┘

Pure: time is passed, and what is to be sent waits in an outbox. The lease says who coordinates, for an *epoch*; a
coordinator stops by its own clock before the engine could give the lease to another. Every change of coordinator is a
*join*, also that of a node to the coordinator that it runs itself.
"""

import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from enum import Enum

import msgspec
from msgspec.structs import replace

from hivemind_addon.formats.base.json_values import packed_decoder
from hivemind_addon.kernel.jobs import read_jobs
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.sliced_work import whole
from hivemind_addon.kernel.values.command import Cancel, CommandResult, SchedulerCommand
from hivemind_addon.kernel.values.decision import Admitted, Refused, Shed, Verdict
from hivemind_addon.kernel.values.events import Event, MachineSlept, OddityNoted
from hivemind_addon.kernel.values.snapshot import Counters, Snapshot
from hivemind_addon.kernel.values.spend import AccountState, Shortage
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Hints, Job, PoolKey, Ticket
from hivemind_addon.plugins.cluster.coordinator import Coordinator
from hivemind_addon.plugins.cluster.coordinator_copy import KeptCopy, on_another_clock
from hivemind_addon.plugins.cluster.lease import Heard, LeaseWatch
from hivemind_addon.plugins.cluster.member import Member
from hivemind_addon.plugins.cluster.messages import (
    VERSION,
    Answers,
    Beat,
    Commanded,
    EngineAnswer,
    EngineFailed,
    EngineRequest,
    Fetch,
    Fetched,
    FromCoordinator,
    FromMember,
    Inquiry,
    Join,
    Kept,
    Leased,
    Leaves,
    Packet,
    Resign,
    Stored,
    StoreKept,
    TakeLease,
    Welcome,
)
from hivemind_addon.plugins.cluster.outbox import NodeLink, Outbox
from hivemind_addon.proxy.api.report import ClusterMember, ClusterView

_NEVER = float("inf")
_TICK_S = 0.1
"""How exactly beats, acknowledgements and the like are kept."""
_KEPT_ANYWAY_S = 30.0
"""What is kept is written as often though nothing has changed: the engine may have lost it."""
_MOST_TOLD = 100
_UNKNOWN_MEMBERS = 2
"""Where no coordinator has ever told how many there are."""
_LONGEST_PAUSE_S = 30.0
_UNLIKE = (
    "tells agents or accounts apart in another way than this proxy; give all members the same HIVEMIND_CLUSTER_SECRET "
    "and hivemind_cluster_agents"
)

_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = packed_decoder(Packet)


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds. Whatever a lease and its loss take comes to less than `alone_after_s`."""

    lease_s: float = 1.5
    ask_s: float = 0.4
    """Between two looks at the lease."""
    beat_s: float = 0.4
    resend_s: float = 0.3
    ack_s: float = 0.1
    join_grace_s: float = 0.6
    """So long a new coordinator waits for those that an earlier one knew."""
    alone_after_s: float = 3.0
    lost_after_s: float = 5.0
    """A member that is not heard of for so long."""
    keep_s: float = 1.0
    fetch_s: float = 3.0


class Role(Enum):
    """What a node is to the others."""

    JOINING = "joining"
    MEMBER = "member"
    COORDINATOR = "coordinator"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Question:
    """A member's question to the proxy around the coordinator; answer it with `ClusterNode.tell`."""

    member: str
    id: int
    what: bytes


class ClusterNode:
    """Drive it as a `core.scheduler.Scheduler`; let the engine's side call the rest, on the same loop."""

    def __init__(
        self,
        *,
        me: str,
        cluster: str = "default",
        identity: str = "",
        rng: random.Random,
        make_scheduler: Callable[[], Scheduler],
        wake: Callable[[], None] = lambda: None,
        overhear: Callable[[Event], None] = lambda event: None,  # noqa: ARG005
        timing: Timing | None = None,
    ) -> None:
        """`me`: unique in the cluster, also over time. `wake`: the outbox is no longer empty.

        `identity`: how this proxy tells agents and accounts apart, as a `Join` has it.
        `overhear`: hears every event of the whole while this node is the coordinator.
        """
        self.me = me
        self.cluster = cluster
        self._identity = identity
        self.role = Role.JOINING
        self.wake = wake
        self.overhear = overhear
        self.looked_at: Callable[[], None] = lambda: None
        """Called where somebody looks at the whole, and another node knows it."""
        self.told: Snapshot | None = None
        """Of the whole, as a coordinator told it last, on this node's clock."""
        self._rng = rng
        self._make_scheduler = make_scheduler
        self._timing = timing or Timing()
        self._member = Member(rng=rng)
        self._events: list[Event] = []
        self._outbox = Outbox(
            me=me,
            resend_s=self._timing.resend_s,
            ack_s=self._timing.ack_s,
            wake=lambda: self.wake(),  # noqa: PLW0108 - it is set later
        )
        self._lease = LeaseWatch(me=me, lease_s=self._timing.lease_s, ask_s=self._timing.ask_s)
        self._sure_at: float | None = None
        """When this node was last sure to be one with the others."""
        self._since = 0.0
        """When its role began."""
        self._session = 0
        self._link: NodeLink[FromCoordinator] | None = None
        self._may_join_at = -_NEVER
        self._join_pause_s = 1.0
        self._peers: dict[str, NodeLink[FromMember]] = {}
        self._unreadable: set[str] = set()
        """Nodes of other versions, of which a person has been told."""
        self._own: Coordinator | None = None
        """Elected, or alone."""
        self._to_own: deque[FromMember] = deque()
        self._to_member: deque[FromCoordinator] = deque()
        self._may_decide = False
        """At the last turn: a coordinator whose lease is over waits, however much is due."""
        self._gathers_until: float | None = None
        """Elected: what is kept is there, and members are waited for."""
        self._elected: int | None = None
        """The epoch of a lease whose coordinator waits for what is kept."""
        self._others_until = -_NEVER
        """So long another may coordinate of whom the engine does not know any more."""
        self._absent_until = -_NEVER
        """So long an elected coordinator counts what others had in flight that have not joined."""
        self._fetch_until = _NEVER
        self._unheard: dict[str, float] = {}
        """Absent members that were not connected to the engine, since when."""
        self._look_at = -_NEVER
        self._keep_at = -_NEVER
        self._kept_at = -_NEVER
        self._is_keeping = False
        self._copy = KeptCopy(fetch=lambda: self._outbox.ask(Fetch()), fetch_s=self._timing.fetch_s)
        self._members = _UNKNOWN_MEMBERS
        self._tick_at = -_NEVER
        self._ticked_at = _NEVER
        self._went_on_at = -_NEVER
        """After it stood still."""
        self._asked_id = 0
        self._asked_open: set[int] = set()
        self._answers: list[tuple[int, bytes | None]] = []
        self._asked: list[Question] = []
        self._closing = False
        self._closed_at = -_NEVER
        self._left = False
        self._told_number = 0
        """The newest end that a coordinator knows of, or has left to the next."""
        self._resigned_number: int | None = None
        """The same, as soon as what this coordinator has left is at the engine."""

    def __repr__(self) -> str:
        return f"<ClusterNode {self.me}, {self.role.value} in epoch {self._lease.epoch}, {self._member!r}>"

    # The driver's side: tickets -------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nothing of this process waits or is in flight."""
        return self._member.is_idle

    def account_of(self, credential: str) -> str:
        """The account to use for a credential's hash."""
        return self._member.accounts.get(credential, credential)

    def must_count(self, ticket: Ticket, now: float) -> bool:
        """Whether the tokens of a ticket have to be counted: always, where another node decides."""
        return self._own is None or self._own.scheduler.must_count(ticket, now)

    def submit(self, ticket: Ticket, settings: PoolSettings, now: float) -> None:
        """Ask for admission."""
        self._member.submit(ticket, settings, now)

    def settle(self, attempt: Attempt, result: AttemptResult, now: float) -> Verdict:
        """End an attempt, exactly once."""
        return self._member.settle(attempt, result, now)

    def shortage(self, ticket: Ticket, now: float) -> Shortage | None:
        """The shortage that a hypothetical ticket would meet, where this node decides."""
        return None if self._own is None else self._own.scheduler.shortage(ticket, now)

    def has_job(self, name: str) -> bool:
        """Whether a job of this process runs."""
        return name in self._member.jobs

    def adopt(self, ticket: Ticket, job: Job, now: float) -> None:
        """Count a job whose request was not scheduled."""
        self._member.adopt(ticket, job, now)

    def end_job(self, name: str, result: AttemptResult, now: float) -> None:
        """The end of a job was seen."""
        self._member.end_job(name, result, now)

    def export_jobs(self, now: float, wall: float) -> object:
        """The running jobs of this process."""
        return self._member.jobs.export(now, wall)

    def restore_jobs(self, data: object, now: float, wall: float) -> None:
        """Go on with the jobs of an earlier process."""
        for job in read_jobs(data, now, wall):
            self._member.begin_job(job, now, is_new=True)

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None:
        """A response's head came."""
        for oddity in hints.oddities:
            self.note(OddityNoted(at=now, pool=attempt.ticket.pool, ticket_id=attempt.ticket.id, what=oddity))
        self._member.observe(attempt, msgspec.structs.replace(hints, oddities=()), answered=answered)

    def cancel(self, ticket_id: str, now: float) -> bool:
        """The client of a ticket that waits went."""
        return self._member.cancel(ticket_id, now)

    def command(self, command: SchedulerCommand, now: float) -> CommandResult:
        """Do what a person asks; at a member what concerns others is passed on, and nobody waits for the answer."""
        if isinstance(command, Cancel) and self._member.call_off(command.ticket_id, now):
            return CommandResult(was_running=any(one.ticket.id == command.ticket_id for one in self._member.cancelled))
        if self._own is not None:
            # What was spent before a new budget is in several journals, and counted in of none.
            result = replaced(self._own.command(command, now), is_new=False)
            self._keep_at = self._tick_at = now  # what a person was told is done outlives this process
            self._turn(now)
            return result
        if self._member.send is not None:
            self._member.send(Commanded(command))
        return CommandResult()

    def configure(self, settings_of: Callable[[PoolKey, str], PoolSettings | None], now: float) -> None:  # noqa: ARG002
        """Profiles were changed."""
        self._member.configure(settings_of)

    def bypass(self, key: PoolKey, change: int) -> None:
        """Attempts that go past the scheduler begin (+1) or end (-1)."""
        self._member.bypass(key, change)

    def note(self, event: Event) -> None:
        """An event of the outside."""
        self._events.append(event)

    def limit_of(self, key: PoolKey) -> int:
        """The pool's concurrency limit as last told."""
        return self._member.limit_of(key)

    def close(self, now: float) -> None:
        """Admit nothing more here. A coordinator gives the lease back: what is in flight is announced to the next."""
        self._closing, self._closed_at = True, now
        self._member.close(now)
        if self.role is Role.COORDINATOR or self._elected is not None:
            self._resign(now)
            self._step_down(now)
            self._lease.ask_at(now)

    @property
    def has_untold(self) -> bool:
        """Whether attempts have ended of which no coordinator knows yet: worth a second or two before `leave`."""
        return self.role in (Role.JOINING, Role.MEMBER) and self._member.number > self._told_number

    def leave(self, now: float) -> None:
        """The process ends: the coordinator need not wait for this node. Send the outbox afterwards."""
        self._left = True
        self._member.close(now)
        if self.role is Role.COORDINATOR or self._elected is not None:
            self._resign(now)
        elif self._link is not None and self._link.is_joined:
            self._to_coordinator(Leaves())

    def wake_up(self, slept_s: float, now: float) -> None:
        """The machine slept until now: what others decided meanwhile is not known."""
        self.note(MachineSlept(at=now, slept_s=slept_s))
        self._member.wake_up(slept_s)
        if self.role is Role.COORDINATOR and now >= self._lease.until:
            self._step_down(now)
        elif self.role is Role.ALONE and self._own is not None:
            self._own.scheduler.wake_up(slept_s, now)
        self._lease.ask_at(now)

    def poll(self, now: float) -> list[Admitted | Shed | Refused]:
        """What was decided for the tickets of this process."""
        if now >= self._tick_at:
            self._tick(now)
        self._turn(now)
        return self._member.poll(now)

    def next_wakeup(self) -> float | None:
        """The next instant at which `poll` could do something if nothing else happens."""
        at = min(self._tick_at, self._member.wakeup_at)
        if self._own is not None and self._may_decide:
            scheduler_at = self._own.next_wakeup()
            at = at if scheduler_at is None else min(at, scheduler_at)
        return at

    def drain_events(self) -> list[Event]:
        """Events of this process's tickets and of everybody's pools since the last call, oldest first."""
        events = self._events + self._member.events
        self._events, self._member.events = [], []
        return events

    def drain_superseded(self) -> list[Attempt]:
        """Attempts whose clients have come back: to be ended."""
        superseded, self._member.superseded = self._member.superseded, []
        return superseded

    def drain_cancelled(self) -> list[Attempt]:
        """Attempts that a person has cancelled: to be ended."""
        cancelled, self._member.cancelled = self._member.cancelled, []
        return cancelled

    # The driver's side: state ---------------------------------------------------------------------------------------

    def export(self, now: float, wall: float) -> dict[str, object]:
        """What was learned, as far as it is known here."""
        if self.role is Role.COORDINATOR and self._own is not None:
            return self._own.scheduler.export(now, wall)
        learned = self._copy.newest.learned
        return learned if isinstance(learned, dict) else self._make_scheduler().export()

    def export_overrides(self, now: float, wall: float) -> object:
        """The orders that stand, as far as they are known here."""
        if self.role is Role.COORDINATOR and self._own is not None:
            return self._own.scheduler.export_overrides(now, wall)
        return on_another_clock(self._copy.newest.orders, self._make_scheduler(), now, self._copy.age_s(now), wall)

    def restore(self, data: object, now: float, wall: float) -> None:  # noqa: ARG002  the cluster's state has no age
        """What an earlier process learned: for a cluster of which the engine keeps nothing."""
        self._restore(Kept(learned=data), now)

    def restore_overrides(self, data: object, now: float, wall: float) -> None:
        """The same of orders."""
        scheduler = self._make_scheduler()
        self._restore(Kept(orders=on_another_clock(data, scheduler, now, wall, 0.0)), now)
        self._events += (event for event in scheduler.drain_events() if isinstance(event, OddityNoted))

    def restore_budgets(self, standings: Sequence[AccountState], now: float) -> None:
        """The same of budgets."""
        self._restore(Kept(standings=tuple(standings)), now)

    def _restore(self, part: Kept, now: float) -> None:
        if not self._copy.is_of_cluster:
            self._copy.add(part, now)
            if self._own is not None:
                self._own.restore(part, 0.0, now)

    def count_in(self, standings: Sequence[AccountState], now: float) -> None:
        """Nothing is counted in that was spent before a budget was set: this journal knows one proxy's part."""

    def snapshot(self, now: float, *, most_queued: int | None = None) -> Snapshot:
        """Of the whole: at a member, as it was told last."""
        return whole(self.snapshot_in_parts(lambda: now, most_queued=most_queued))

    def snapshot_in_parts(
        self, clock: Callable[[], float], *, most_queued: int | None = None
    ) -> Generator[None, None, Snapshot]:
        """The same in parts."""
        if self._own is not None:
            return (yield from self._own.scheduler.snapshot_in_parts(clock, most_queued=most_queued))
        self.looked_at()
        yield
        if self.told is not None:
            return msgspec.structs.replace(self.told, at=clock())
        now = clock()
        return Snapshot(at=now, stopping=self._closing, pools=self._member.views(now), counters=Counters())

    def cluster_view(self, now: float) -> ClusterView:
        """The cluster as this node sees it."""
        members: tuple[ClusterMember, ...] = ()
        if self._own is not None:
            members = tuple(
                ClusterMember(name=name, waiting=waiting, in_flight=flying)
                for name, (waiting, flying) in sorted(self._own.members.items())
            )
        coordinator = {Role.COORDINATOR: self.me, Role.MEMBER: self._link.to if self._link else ""}.get(self.role, "")
        return ClusterView(
            name=self.cluster,
            me=self.me,
            role=self.role.value,
            coordinator=coordinator,
            epoch=self._lease.epoch,
            members=members,
            known_members=self._members,
            share=self._own.share if self._own is not None and self.role is Role.ALONE else 1.0,
            since_s=max(0.0, now - self._since),
        )

    # Asks -------------------------------------------------------------------------------------------------------------

    def ask(self, what: bytes) -> int:
        """Ask the proxy around the coordinator. Its answer comes by `drain_answers`, under this number."""
        self._asked_id += 1
        if self._own is not None:
            self._asked.append(Question(self.me, self._asked_id, what))
        elif self.role is Role.MEMBER:
            self._asked_open.add(self._asked_id)
            self._to_coordinator(Inquiry(self._asked_id, what))
        else:
            self._answers.append((self._asked_id, None))
        return self._asked_id

    def drain_answers(self) -> list[tuple[int, bytes | None]]:
        """Answers since the last call; None: nobody could answer."""
        answers, self._answers = self._answers, []
        return answers

    def drain_asked(self) -> list[Question]:
        """Questions of members since the last call."""
        asked, self._asked = self._asked, []
        return asked

    def tell(self, asked: Question, answer: bytes) -> None:
        """Answer a question."""
        if asked.member == self.me:
            self._answers.append((asked.id, answer))
        else:
            self._send(asked.member, Answers(asked.id, answer))

    # The engine's side ----------------------------------------------------------------------------------------------

    def drain_outbox(self, now: float) -> list[EngineRequest]:
        """What the engine is to be asked, since the last call. Answer what is no `Publish` by `answered`."""
        return self._outbox.drain(now)

    def receive(self, data: bytes, now: float) -> None:
        """An envelope came. One that is none, or of another session or epoch, is overlooked."""
        try:
            envelope = _decode_envelope(data)
        except msgspec.MsgspecError as error:
            self.note(OddityNoted(at=now, pool=None, ticket_id=None, what=f"cluster: no envelope: {error}"))
            return
        if envelope.version != VERSION:
            self._cannot_read(envelope, now)
            return
        if self._left:
            return
        self._look_for_standstill(now)
        if envelope.epoch > self._lease.epoch:
            self._lease.ask_at(now)
            self._tick_at = min(self._tick_at, now)
        if envelope.to_coordinator:
            self._receive_of_member(envelope, now)
        else:
            self._receive_of_coordinator(envelope, now)

    def _cannot_read(self, envelope: Packet, now: float) -> None:
        """Another version's, which speaks otherwise: said once of each node."""
        if envelope.sender not in self._unreadable and len(self._unreadable) < _MOST_TOLD:
            self._unreadable.add(envelope.sender)
            versions = f"version {envelope.version} of the protocol, and this proxy {VERSION}"
            what = f"cluster: {envelope.sender} speaks {versions}"
            cure = "they schedule apart until both run one release of hivemind_addon"
            self.note(OddityNoted(at=now, pool=None, ticket_id=None, what=f"{what}; {cure}"))

    def answered(self, answer: EngineAnswer, now: float) -> None:
        """The engine's answer to a request."""
        match answer:
            case Leased():
                self._leased(answer, now)
            case Fetched(data, age_s=age_s):
                if why := self._copy.fetched(data, age_s, now):
                    self.note(OddityNoted(at=now, pool=None, ticket_id=None, what=f"cluster: what is kept: {why}"))
                if self._elected is not None:
                    self._elect(now)
            case Stored(done):
                self._is_keeping = False
                if done and self._resigned_number is not None:
                    self._told_number, self._resigned_number = self._resigned_number, None
                if self._own is not None and done:
                    self._own.was_kept()
                    self._member.was_kept(self._own.kept_number(self.me), now)
                elif not done:
                    self._lease.ask_at(now)
            case EngineFailed(request=TakeLease()):
                self._lease.failed(now)
            case EngineFailed(request=Fetch()):
                self._copy.fetch_failed()
            case EngineFailed(request=StoreKept()):
                self._is_keeping = False
                if self._own is not None:
                    self._own.is_dirty = True
        self._tick_at = min(self._tick_at, now)

    def unheard(self, name: str, now: float) -> None:
        """What was published for a node reached nobody: it is not connected to the engine.

        A process that is paused, or cut off, is still connected for the engine; one that is dead is not.
        """
        own = self._own
        if own is None or self.role is not Role.COORDINATOR or name not in own.absent:
            return
        since = self._unheard.setdefault(name, now)
        if now >= since + self._timing.resend_s / 2:
            own.lose(name, now)
            self._tick_at = min(self._tick_at, now)

    # The lease ------------------------------------------------------------------------------------------------------

    def _leased(self, answer: Leased, now: float) -> None:
        is_leader = self.role is Role.COORDINATOR and self._own is not None
        held = (self._elected, self._own.epoch if is_leader and self._own is not None else None)
        match self._lease.hear(answer, now, wants=lambda: self._wants_lease(now), held=held):
            case Heard.UNWANTED:
                self._outbox.ask(Resign(answer.epoch))
            case Heard.GIVEN:
                self._begin_election(answer, now)
            case Heard.ANOTHER:
                if is_leader or self._elected is not None:
                    self._step_down(now)
                link = self._link
                is_known = link is not None and link.to == answer.holder and link.epoch == answer.epoch
                if answer.holder and not is_known and now >= self._may_join_at and not self._left:
                    self._join(answer.holder, answer.epoch, now)
            case Heard.STALE | Heard.HELD:
                pass

    def _wants_lease(self, now: float) -> bool:
        """Whether to become the coordinator where nobody has the lease."""
        timing, link = self._timing, self._link
        if self._closing:
            # Only where nobody else took it, and for what nobody else would ever know.
            has_untold = not self._member.is_idle or self._member.number > self._told_number
            return has_untold and now >= self._closed_at + 2 * timing.ask_s
        if self.role is Role.MEMBER and link is not None and self._lease.holder:
            # An engine that has lost its memory gives it to whoever asks first: it is to be the one that is there.
            return now >= link.heard_at + timing.lease_s - timing.ask_s
        if not self._copy.is_of_cluster and not self._lease.remembers:
            # The same: whoever has a copy of what was kept goes first.
            return now >= self._since + timing.lease_s - timing.ask_s
        return True

    def _begin_election(self, answer: Leased, now: float) -> None:
        """The lease is this node's: what is kept is read first."""
        self._elected = answer.epoch
        self._others_until = self._lease.others_until if answer.forgot else now
        self._fetch_until = now + self._timing.join_grace_s
        self._copy.fetch()

    def _elect(self, now: float) -> None:
        """Become the coordinator, with what is kept as far as it is known."""
        assert self._elected is not None
        epoch, self._elected = self._elected, None
        own = Coordinator(epoch=epoch, scheduler=self._make_scheduler(), send=self._send, overhear=self.overhear)
        own.succeed(self._copy.newest, self._copy.age_s(now), now)
        own.split_until = now + self._timing.lost_after_s
        self._unheard, self._look_at = {}, now
        self._coordinate(own, Role.COORDINATOR, now)
        others = [name for name in own.absent if name != self.me]
        self._gathers_until = max(now + self._timing.join_grace_s if others else now, self._others_until)
        self._keep_at = now

    def _go_alone(self, now: float) -> None:
        """No coordinator: this node is its own, with its share of what was known last."""
        share = 1.0 / max(1, self._members)
        own = Coordinator(epoch=0, scheduler=self._make_scheduler(), send=self._send, share=share)
        own.restore(self._copy.newest, self._copy.age_s(now), now)
        self._coordinate(own, Role.ALONE, now)
        own.scheduler.share_budgets(share, now)
        self._gathers_until = None

    def _coordinate(self, own: Coordinator, role: Role, now: float) -> None:
        self._drop_link()
        self._drop_own()
        self._own = own
        self._become(role, now)
        self._join_pause_s = 1.0
        self._member.send = None
        join = self._member.join()
        self._member.is_alone = role is Role.ALONE
        self._member.send = self._to_own.append
        own.join(self.me, join, 0.0, now)

    def _step_down(self, now: float) -> None:
        """No longer the coordinator; what it knew is thrown away, and announced anew to the next."""
        self._elected = None
        if self.role is Role.COORDINATOR:
            self._sure_at = max(min(now, self._lease.until), self._went_on_at)
        self._lease.drop()
        self._drop_own()
        self._member.send = None
        self._become(Role.JOINING, now)

    def _drop_own(self) -> None:
        if self._own is not None and self.role is Role.COORDINATOR:
            for asked in self._asked:
                if asked.member == self.me:
                    self._answers.append((asked.id, None))
            self._asked = []
        self._own = None
        self._gathers_until = None
        self._peers.clear()
        self._to_own.clear()
        self._to_member.clear()
        self._outbox.drop_members()

    def _become(self, role: Role, now: float) -> None:
        if role is not self.role:
            self.role, self._since = role, now
        if role in (Role.COORDINATOR, Role.MEMBER):
            self._sure_at = now

    # Member of another's whole ---------------------------------------------------------------------------------------

    def _join(self, coordinator: str, epoch: int, now: float) -> None:
        """Announce everything to a coordinator; until it answers, nobody is admitted here."""
        was = self.role
        self._drop_own()
        self._drop_link()
        if was in (Role.MEMBER, Role.ALONE):
            self._sure_at = now
        self._session += 1
        link = self._link = self._outbox.link_to_coordinator(coordinator, epoch=epoch, session=self._session, now=now)
        self._member.send = None
        join = replace(self._member.join(), identity=self._identity)
        self._member.is_alone = False
        self._become(Role.JOINING, now)
        self._outbox.send(link, join)
        self._member.send = self._to_coordinator

    def _drop_link(self) -> None:
        if self._link is not None:
            self._outbox.drop(self._link)
            self._link = None
        self._answers += [(asked_id, None) for asked_id in self._asked_open]
        self._asked_open.clear()

    def _to_coordinator(self, message: FromMember) -> None:
        if self._link is not None:
            self._outbox.send(self._link, message)

    def _receive_of_coordinator(self, envelope: Packet, now: float) -> None:
        link = self._link
        if link is None or (envelope.sender, envelope.epoch, envelope.session) != (link.to, link.epoch, link.session):
            return
        if envelope.first == 0:
            self._join(link.to, link.epoch, now)  # it does not know of this session
            return
        link.heard_at = now
        for message in link.channel.receive(
            at=envelope.at, ack=envelope.ack, first=envelope.first, messages=envelope.messages, now=now
        ):
            match message:
                case None:
                    pass
                case Beat(members=members, kept=kept, kept_version=version):
                    self._members = max(1, members)
                    self._member.was_kept(kept, now)
                    self._copy.look(self._lease.epoch, version, now)
                case Answers(asked_id, answer=answer):
                    if asked_id in self._asked_open:
                        self._asked_open.discard(asked_id)
                        self._answers.append((asked_id, answer))
                case _:
                    if isinstance(message, Welcome):
                        link.is_joined = True
                        self._join_pause_s = 1.0
                        self._become(Role.MEMBER, now)
                    self._member.hear(message, link.channel.offset, now)
        if link.is_joined and link.channel.is_acknowledged:
            self._told_number = self._member.number
        if link.channel.due_at < _NEVER:
            self._tick_at = min(self._tick_at, now + self._timing.ack_s)

    # Coordinator of the whole -----------------------------------------------------------------------------------------

    def _receive_of_member(self, envelope: Packet, now: float) -> None:
        own = self._own
        if own is None or self.role is not Role.COORDINATOR or envelope.epoch != own.epoch:
            return
        peer = self._peers.get(envelope.sender)
        if peer is None or envelope.session > peer.session:
            link = self._outbox.link_to_member(envelope.sender, epoch=own.epoch, session=envelope.session, now=now)
            if envelope.first != 1:
                # A session that this coordinator does not know: it is to begin anew.
                self._outbox.publish(link, now, first=0)
                self.wake()
                return
            peer = self._peers[envelope.sender] = link
        elif envelope.session < peer.session:
            return
        peer.heard_at = now
        for message in peer.channel.receive(
            at=envelope.at, ack=envelope.ack, first=envelope.first, messages=envelope.messages, now=now
        ):
            match message:
                case None:
                    pass
                case Join():
                    peer.is_joined = True
                    if message.identity != self._identity:
                        self.note(OddityNoted(at=now, pool=None, ticket_id=None, what=f"cluster: {peer.to} {_UNLIKE}"))
                    own.join(peer.to, message, peer.channel.offset, now)
                case Inquiry(asked_id, what=what):
                    self._asked.append(Question(peer.to, asked_id, what))
                case Leaves():
                    own.leave(peer.to, now)
                    self._peers.pop(peer.to, None)
                    return
                case _:
                    own.hear(peer.to, message, now)
        if peer.channel.due_at < _NEVER:
            self._tick_at = min(self._tick_at, now + self._timing.ack_s)

    def _send(self, name: str, message: FromCoordinator) -> None:
        if name == self.me:
            self._to_member.append(message)
        elif (peer := self._peers.get(name)) is not None:
            self._outbox.send(peer, message)

    # Turns ------------------------------------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        """Let the coordinator that runs here decide, if it may."""
        own = self._own
        if own is None:
            return
        self._may_decide = self.role is Role.ALONE or (now < self._lease.until and self._gathers_until is None)
        while True:
            while self._to_own:
                own.hear(self.me, self._to_own.popleft(), now)
            if self._may_decide:
                own.poll(now)
            if not self._to_member:
                break
            while self._to_member:
                self._member.hear(self._to_member.popleft(), 0.0, now)

    def _tick(self, now: float) -> None:
        """Everything that is done from time to time."""
        self._tick_at = now + _TICK_S
        if self._sure_at is None:
            self._sure_at = self._since = now
        self._look_for_standstill(now)
        if self._left:
            return
        timing = self._timing
        renews = self.role is Role.COORDINATOR or self._elected is not None
        if request := self._lease.ask(now, wants=self._wants_lease(now), renews=renews):
            self._outbox.ask(request)
        if self._elected is not None and (now >= self._fetch_until or now >= self._lease.until):
            if now >= self._lease.until:
                self._step_down(now)
            elif self._copy.is_of_cluster:
                self._elect(now)
            else:
                # Nobody here knows what was spent, and it would be written over: another one may know it, or is told.
                self._resign(now)
                self._step_down(now)
        if self.role is Role.COORDINATOR:
            self._tick_coordinator(now)
        elif self._link is not None:
            self._tick_member(self._link, now)
        if self.role is Role.JOINING and self._elected is None and now >= self._sure_at + timing.alone_after_s:
            if self._link is not None:
                # Whoever holds the lease does not answer here: it is asked again, ever more seldom.
                self._may_join_at = now + self._join_pause_s
                self._join_pause_s = min(2 * self._join_pause_s, _LONGEST_PAUSE_S)
            self._go_alone(now)

    def _look_for_standstill(self, now: float) -> None:
        """After this process stood still, or its machine slept: what it did not hear meanwhile tells of nobody.

        And what it finds in its sockets may be of a coordinator that has given it up, its slots included.
        """
        stood_s, self._ticked_at = now - self._ticked_at, now
        if stood_s < self._timing.lease_s:
            return
        self._sure_at = self._went_on_at = now
        self._lease.ask_at(now)
        if self._link is not None:
            self._link.heard_at = now
            if stood_s >= self._timing.lost_after_s - 2 * self._timing.ask_s:
                self._join(self._link.to, self._link.epoch, now)

    def _tick_coordinator(self, now: float) -> None:
        own, timing = self._own, self._timing
        assert own is not None
        if now >= self._lease.until:
            if now >= self._lease.until + timing.alone_after_s - timing.lease_s:
                self._step_down(now)
            return
        self._sure_at = now
        self._look_for_absent(own, now)
        if self._gathers_until is not None:
            is_missing = any(name != self.me for name in own.absent)
            if now >= self._gathers_until or (not is_missing and now >= self._others_until):
                self._gathers_until = None
                self._absent_until = now + timing.lost_after_s
        elif now >= self._absent_until:
            for name in tuple(own.absent):
                own.lose(name, now)
        for peer in tuple(self._peers.values()):
            if now >= peer.heard_at + timing.lost_after_s:
                del self._peers[peer.to]
                own.lose(peer.to, now)
                continue
            if now >= peer.heard_at + timing.alone_after_s - timing.ask_s:
                own.split_until = now  # it may be alone by now
            if now >= peer.sent_at + timing.beat_s and peer.is_joined:
                beat = Beat(len(self._peers) + 1, own.kept_number(peer.to), self._copy.newest.version)
                self._send(peer.to, beat)
            elif now >= peer.channel.due_at:
                self._outbox.mark(peer)
        self._members = len(self._peers) + 1
        is_due = now >= self._keep_at and (own.is_dirty or now >= self._kept_at + _KEPT_ANYWAY_S)
        if is_due and not self._is_keeping and self._gathers_until is None:
            self._keep(own, now)

    def _look_for_absent(self, own: Coordinator, now: float) -> None:
        """Send to who has not joined yet: whether that reaches anybody tells a process that is dead from a slow one."""
        if now < self._look_at:
            return
        self._look_at = now + self._timing.resend_s
        for name in own.absent:
            if name != self.me:
                nobody = self._outbox.link_to_member(name, epoch=own.epoch, session=0, now=now)
                self._outbox.publish(nobody, now, first=1)

    def _keep(self, own: Coordinator, now: float) -> None:
        self._is_keeping, self._keep_at, self._kept_at = True, now + self._timing.keep_s, now
        kept = own.keep(now)
        self._copy.put(kept, now)
        self._outbox.ask(StoreKept(own.epoch, _encode(kept)))

    def _resign(self, now: float) -> None:
        """Leave to the next coordinator what this one knows, then the lease."""
        if self._own is not None and self.role is Role.COORDINATOR:
            self._keep(self._own, now)
            self._resigned_number = self._member.number
        self._outbox.ask(Resign(self._lease.epoch))

    def _tick_member(self, link: NodeLink[FromCoordinator], now: float) -> None:
        timing = self._timing
        if self.role is Role.MEMBER:
            self._sure_at = link.heard_at
            if now >= link.heard_at + timing.alone_after_s:
                self._go_alone(now)
                return
        if now >= link.channel.due_at or now >= link.sent_at + timing.beat_s:
            self._outbox.mark(link)
