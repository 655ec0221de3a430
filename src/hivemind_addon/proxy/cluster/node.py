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
from msgspec import Raw
from msgspec.structs import replace

from hivemind_addon.api.command import Cancel, CommandResult, SchedulerCommand
from hivemind_addon.api.events import Event, MachineSlept, OddityNoted
from hivemind_addon.api.report import ClusterMember, ClusterView
from hivemind_addon.api.snapshot import Counters, Snapshot
from hivemind_addon.api.spend import AccountState
from hivemind_addon.api.ticket import Attempt, AttemptResult, Hints, PoolKey, Ticket
from hivemind_addon.proxy.cluster.channel import Channel
from hivemind_addon.proxy.cluster.coordinator import Coordinator
from hivemind_addon.proxy.cluster.member import Member
from hivemind_addon.proxy.cluster.messages import (
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
    Publish,
    Resign,
    Stored,
    StoreKept,
    TakeLease,
    Welcome,
)
from hivemind_addon.proxy.core.pool import PoolSettings
from hivemind_addon.proxy.core.retry import Admitted, Refused, Shed, Verdict
from hivemind_addon.proxy.core.scheduler import Scheduler
from hivemind_addon.proxy.core.share import scaled_learned
from hivemind_addon.system.parts import whole

_NEVER = float("inf")
_TICK_S = 0.1
"""How exactly beats, acknowledgements and the like are kept."""
_LEASE_MARGIN_S = 0.1
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
_decode_envelope = msgspec.msgpack.Decoder(Packet).decode
_decode_of_member = msgspec.msgpack.Decoder(FromMember).decode
_decode_of_coordinator = msgspec.msgpack.Decoder(FromCoordinator).decode
_decode_kept = msgspec.msgpack.Decoder(Kept).decode


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


class _Link[M]:
    """One end of a session with another node."""

    __slots__ = ("channel", "epoch", "heard_at", "is_joined", "sent_at", "session", "to")

    def __init__(self, to: str, epoch: int, session: int, channel: Channel[M | None], now: float) -> None:
        self.to = to
        self.epoch = epoch
        self.session = session
        self.channel = channel
        self.heard_at = now
        self.sent_at = -_NEVER
        self.is_joined = False
        """The join was answered (at the member), or has come (at the coordinator)."""


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
        wall: Callable[[], float],
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
        self._wall = wall
        self._timing = timing or Timing()
        self._member = Member(rng=rng)
        self._events: list[Event] = []
        self._outbox: list[EngineRequest] = []
        self._epoch = 0
        """The newest that is known."""
        self._holder = ""
        self._lease_until = -_NEVER
        """Of this node's own lease, by its own clock."""
        self._is_asking = False
        self._did_want = False
        """The last time that it asked."""
        self._ask_at = -_NEVER
        self._sure_at: float | None = None
        """When this node was last sure to be one with the others."""
        self._since = 0.0
        """When its role began."""
        self._session = 0
        self._link: _Link[FromCoordinator] | None = None
        self._may_join_at = -_NEVER
        self._join_pause_s = 1.0
        self._peers: dict[str, _Link[FromMember]] = {}
        self._unreadable: set[str] = set()
        """Nodes of other versions, of which a person has been told."""
        self._dirty: dict[_Link[FromMember] | _Link[FromCoordinator], None] = {}
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
        self._is_fetching = False
        self._fetched_at = -_NEVER
        self._unheard: dict[str, float] = {}
        """Absent members that were not connected to the engine, since when."""
        self._look_at = -_NEVER
        self._keep_at = -_NEVER
        self._kept_at = -_NEVER
        self._is_keeping = False
        self._newest: Kept | None = None
        """What was kept last, as far as is known here."""
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
        self._remembers: bool | None = None
        """The engine knew of epochs at the last look; None: it was not looked at."""
        self._forgot_at = 0.0
        """When it was first seen not to."""
        self._restored: dict[str, object] = {}
        self._restored_standings: Sequence[AccountState] = ()

    def __repr__(self) -> str:
        return f"<ClusterNode {self.me}, {self.role.value} in epoch {self._epoch}, {self._member!r}>"

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
            self._ask_at = now

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
        if self.role is Role.COORDINATOR and now >= self._lease_until:
            self._step_down(now)
        elif self.role is Role.ALONE and self._own is not None:
            self._own.scheduler.wake_up(slept_s, now)
        self._ask_at = now

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

    def export(self) -> dict[str, object]:
        """What was learned, as far as it is known here."""
        if self.role is Role.COORDINATOR and self._own is not None:
            return self._own.scheduler.export()
        learned = self._newest.learned if self._newest else self._restored.get("learned")
        return learned if isinstance(learned, dict) else self._make_scheduler().export()

    def export_overrides(self, now: float, wall: float) -> object:
        """The orders that stand, as far as they are known here."""
        if self.role is Role.COORDINATOR and self._own is not None:
            return self._own.scheduler.export_overrides(now, wall)
        if self._newest is not None:
            return self._newest.orders
        return self._restored.get("orders") or self._make_scheduler().export_overrides(now, wall)

    def restore(self, data: object, now: float) -> None:
        """What an earlier process learned: for a cluster of which the engine keeps nothing."""
        self._restored["learned"] = data
        if self._own is not None and self._newest is None:
            self._own.scheduler.restore(data, now)

    def restore_overrides(self, data: object, now: float, wall: float) -> None:
        """The same of orders."""
        self._restored["orders"] = data
        if self._own is not None and self._newest is None:
            self._own.scheduler.restore_overrides(data, now, wall)

    def restore_budgets(self, standings: Sequence[AccountState], now: float) -> None:
        """The same of budgets."""
        self._restored_standings = tuple(standings)
        if self._own is not None and self._newest is None:
            self._own.scheduler.restore_budgets(standings, now)

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
            epoch=self._epoch,
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
        links, self._dirty = self._dirty, {}
        for link in links:
            ack, first, messages = link.channel.take(now)
            self._publish(link, ack, first, messages, now)
            if link.channel.has_news:
                self._mark(link)
        outbox, self._outbox = self._outbox, []
        return outbox

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
        if envelope.epoch > self._epoch:
            self._ask_at = min(self._ask_at, now)
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
                self._is_asking = False
                self._ask_at = answer.asked_at + self._timing.ask_s
                self._leased(answer, now)
            case Fetched(data):
                self._is_fetching = False
                self._fetched(data, now)
            case Stored(done):
                self._is_keeping = False
                if done and self._resigned_number is not None:
                    self._told_number, self._resigned_number = self._resigned_number, None
                if self._own is not None and done:
                    self._own.was_kept()
                    self._member.was_kept(self._own.kept_number(self.me), now)
                elif not done:
                    self._ask_at = now
            case EngineFailed(request=TakeLease()):
                self._is_asking = False
                self._ask_at = now + self._timing.ask_s
            case EngineFailed(request=Fetch()):
                self._is_fetching = False
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
        if answer.forgot and self._remembers is not False:
            self._forgot_at = now
        self._remembers = not answer.forgot
        if answer.epoch < self._epoch:
            return  # an answer that was long on its way, or an engine that has lost its count: it is asked again
        if answer.holder == self.me:
            lease_until = answer.asked_at + self._timing.lease_s - _LEASE_MARGIN_S
            is_ours = (
                self._elected == answer.epoch
                or (self.role is Role.COORDINATOR and self._own is not None and self._own.epoch == answer.epoch)
            )  # fmt: skip
            if is_ours:
                self._lease_until = max(self._lease_until, lease_until)
            elif answer.epoch == self._epoch or not self._wants_lease(now):
                self._ask_engine(Resign(answer.epoch))  # what was in this epoch is thrown away
            elif now < lease_until:
                self._lease_until = lease_until
                self._begin_election(answer, now)
            self._epoch = answer.epoch
            self._holder = answer.holder
            return
        self._epoch = answer.epoch
        if answer.holder or not answer.forgot:
            self._holder = answer.holder
        if self.role is Role.COORDINATOR or self._elected is not None:
            self._step_down(now)
        if not answer.holder and not answer.forgot and not self._did_want:
            self._ask_at = now
        link = self._link
        is_known = link is not None and link.to == answer.holder and link.epoch == answer.epoch
        if answer.holder and not is_known and now >= self._may_join_at and not self._left:
            self._join(answer.holder, answer.epoch, now)

    def _wants_lease(self, now: float) -> bool:
        """Whether to become the coordinator where nobody has the lease."""
        timing, link = self._timing, self._link
        if self._closing:
            # Only where nobody else took it, and for what nobody else would ever know.
            has_untold = not self._member.is_idle or self._member.number > self._told_number
            return has_untold and now >= self._closed_at + 2 * timing.ask_s
        if self.role is Role.MEMBER and link is not None and self._holder:
            # An engine that has lost its memory gives it to whoever asks first: it is to be the one that is there.
            return now >= link.heard_at + timing.lease_s - timing.ask_s
        if self._newest is None and not self._remembers:
            # The same: whoever has a copy of what was kept goes first.
            return now >= self._since + timing.lease_s - timing.ask_s
        return True

    def _begin_election(self, answer: Leased, now: float) -> None:
        """The lease is this node's: what is kept is read first."""
        self._elected = answer.epoch
        # An engine that has forgotten may have given the lease to another one, which it ends by its own clock.
        self._others_until = self._forgot_at + self._timing.lease_s if answer.forgot else now
        self._fetch_until = now + self._timing.join_grace_s
        if not self._is_fetching:
            self._is_fetching = True
            self._ask_engine(Fetch())

    def _elect(self, now: float) -> None:
        """Become the coordinator, with what is kept as far as it is known."""
        assert self._elected is not None
        epoch, self._elected = self._elected, None
        own = Coordinator(epoch=epoch, scheduler=self._make_scheduler(), send=self._send, overhear=self.overhear)
        if self._newest is not None:
            own.restore(self._newest, now, self._wall())
        else:
            self._restore_own(own.scheduler, now)
        own.split_until = now + self._timing.lost_after_s
        self._unheard, self._look_at = {}, now
        self._coordinate(own, Role.COORDINATOR, now)
        others = [name for name in own.absent if name != self.me]
        self._gathers_until = max(now + self._timing.join_grace_s if others else now, self._others_until)
        self._keep_at = now

    def _restore_own(self, scheduler: Scheduler, now: float, share: float = 1.0) -> None:
        """Begin with what this process's own files keep."""
        if "learned" in self._restored:
            scheduler.restore(scaled_learned(self._restored["learned"], share), now)
        if "orders" in self._restored:
            scheduler.restore_overrides(self._restored["orders"], now, self._wall())
        scheduler.restore_budgets(self._restored_standings, now)

    def _go_alone(self, now: float) -> None:
        """No coordinator: this node is its own, with its share of what was known last."""
        share = 1.0 / max(1, self._members)
        scheduler = self._make_scheduler()
        if self._newest is not None:
            wall = self._wall()
            age_s = max(0.0, wall - self._newest.wall)
            scheduler.restore(scaled_learned(self._newest.learned, share), now)
            scheduler.restore_overrides(self._newest.orders, now, wall)
            standings = [msgspec.structs.replace(one, age_s=one.age_s + age_s) for one in self._newest.standings]
            scheduler.restore_budgets(standings, now)
        else:
            self._restore_own(scheduler, now, share)
        self._coordinate(Coordinator(epoch=0, scheduler=scheduler, send=self._send, share=share), Role.ALONE, now)
        scheduler.share_budgets(share, now)
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
            self._sure_at = max(min(now, self._lease_until), self._went_on_at)
        self._lease_until = -_NEVER
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
        self._dirty = {link: None for link in self._dirty if link is self._link}

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
        timing = self._timing
        channel = Channel(decode=_read_of_coordinator, resend_s=timing.resend_s, ack_s=timing.ack_s)
        link = self._link = _Link(coordinator, epoch, self._session, channel, now)
        self._member.send = None
        join = replace(self._member.join(), identity=self._identity)
        self._member.is_alone = False
        self._become(Role.JOINING, now)
        link.channel.send(join)
        self._member.send = self._to_coordinator
        self._mark(link)

    def _drop_link(self) -> None:
        if self._link is not None:
            self._dirty.pop(self._link, None)
            self._link = None
        self._answers += [(asked_id, None) for asked_id in self._asked_open]
        self._asked_open.clear()

    def _to_coordinator(self, message: FromMember) -> None:
        if self._link is not None:
            self._link.channel.send(message)
            self._mark(self._link)

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
                    self._fetch_news(version, now)
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

    def _fetch_news(self, version: int, now: float) -> None:
        """Have a copy of what is kept, for the time when the engine is not there."""
        known = self._newest
        is_new = known is None or (known.epoch, known.version) < (self._epoch, version)
        if is_new and not self._is_fetching and now >= self._fetched_at + self._timing.fetch_s:
            self._is_fetching, self._fetched_at = True, now
            self._ask_engine(Fetch())

    def _fetched(self, data: bytes | None, now: float) -> None:
        if data is not None:
            try:
                kept = _decode_kept(data)
            except msgspec.MsgspecError as error:
                self.note(OddityNoted(at=now, pool=None, ticket_id=None, what=f"cluster: what is kept: {error}"))
            else:
                if self._newest is None or (self._newest.epoch, self._newest.version) < (kept.epoch, kept.version):
                    self._newest = kept
        if self._elected is not None:
            self._elect(now)

    # Coordinator of the whole -----------------------------------------------------------------------------------------

    def _receive_of_member(self, envelope: Packet, now: float) -> None:
        own = self._own
        if own is None or self.role is not Role.COORDINATOR or envelope.epoch != own.epoch:
            return
        peer = self._peers.get(envelope.sender)
        if peer is None or envelope.session > peer.session:
            if envelope.first != 1:
                # A session that this coordinator does not know: it is to begin anew.
                closed = self._link_to_member(envelope.sender, envelope.session, own.epoch, now)
                self._publish(closed, 0, 0, [], now)
                self.wake()
                return
            peer = self._link_to_member(envelope.sender, envelope.session, own.epoch, now)
            self._peers[envelope.sender] = peer
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
            peer.channel.send(message)
            self._mark(peer)

    # Turns ------------------------------------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        """Let the coordinator that runs here decide, if it may."""
        own = self._own
        if own is None:
            return
        self._may_decide = self.role is Role.ALONE or (now < self._lease_until and self._gathers_until is None)
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
        if now >= self._ask_at and not self._is_asking:
            self._is_asking = True
            renews = self.role is Role.COORDINATOR or self._elected is not None
            self._did_want = self._wants_lease(now)
            self._ask_engine(
                TakeLease(
                    epoch=self._epoch,
                    renews=renews,
                    wants=self._did_want,
                    ttl_s=timing.lease_s,
                    asked_at=now,
                )
            )
        if self._elected is not None and (now >= self._fetch_until or now >= self._lease_until):
            if now < self._lease_until:
                self._elect(now)
            else:
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
        self._sure_at = self._went_on_at = self._ask_at = now
        if self._link is not None:
            self._link.heard_at = now
            if stood_s >= self._timing.lost_after_s - 2 * self._timing.ask_s:
                self._join(self._link.to, self._link.epoch, now)

    def _tick_coordinator(self, now: float) -> None:
        own, timing = self._own, self._timing
        assert own is not None
        if now >= self._lease_until:
            if now >= self._lease_until + timing.alone_after_s - timing.lease_s:
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
                beat = Beat(len(self._peers) + 1, own.kept_number(peer.to), self._newest.version if self._newest else 0)
                self._send(peer.to, beat)
            elif now >= peer.channel.due_at:
                self._mark(peer)
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
                self._publish(self._link_to_member(name, 0, own.epoch, now), 0, 1, [], now)

    def _keep(self, own: Coordinator, now: float) -> None:
        self._is_keeping, self._keep_at, self._kept_at = True, now + self._timing.keep_s, now
        self._newest = own.keep(now, self._wall())
        self._ask_engine(StoreKept(own.epoch, _encode(self._newest)))

    def _resign(self, now: float) -> None:
        """Leave to the next coordinator what this one knows, then the lease."""
        if self._own is not None and self.role is Role.COORDINATOR:
            self._keep(self._own, now)
            self._resigned_number = self._member.number
        self._ask_engine(Resign(self._epoch))

    def _tick_member(self, link: _Link[FromCoordinator], now: float) -> None:
        timing = self._timing
        if self.role is Role.MEMBER:
            self._sure_at = link.heard_at
            if now >= link.heard_at + timing.alone_after_s:
                self._go_alone(now)
                return
        if now >= link.channel.due_at or now >= link.sent_at + timing.beat_s:
            self._mark(link)

    # The outbox -------------------------------------------------------------------------------------------------------

    def _link_to_member(self, name: str, session: int, epoch: int, now: float) -> _Link[FromMember]:
        timing = self._timing
        channel = Channel(decode=_read_of_member, resend_s=timing.resend_s, ack_s=timing.ack_s)
        return _Link(name, epoch, session, channel, now)

    def _ask_engine(self, request: EngineRequest) -> None:
        self._outbox.append(request)
        self.wake()

    def _mark(self, link: "_Link[FromMember] | _Link[FromCoordinator]") -> None:
        """Something is to be sent on this link."""
        if not self._dirty:
            self._dirty[link] = None
            self.wake()
        else:
            self._dirty[link] = None

    def _publish(
        self,
        link: "_Link[FromMember] | _Link[FromCoordinator]",
        ack: int,
        first: int,
        messages: list[Raw],
        now: float,
    ) -> None:
        link.sent_at = now
        envelope = Packet(
            version=VERSION,
            sender=self.me,
            epoch=link.epoch,
            session=link.session,
            to_coordinator=link is self._link,
            at=now,
            ack=ack,
            first=first,
            messages=messages,
        )
        self._outbox.append(Publish(link.to, _encode(envelope)))


def _read_of_member(message: Raw) -> FromMember | None:
    """None: a newer version's, which is overlooked."""
    try:
        read: FromMember = _decode_of_member(message)
    except msgspec.ValidationError:
        return None
    return read


def _read_of_coordinator(message: Raw) -> FromCoordinator | None:
    """None: a newer version's, which is overlooked."""
    try:
        read: FromCoordinator = _decode_of_coordinator(message)
    except msgspec.ValidationError:
        return None
    return read
