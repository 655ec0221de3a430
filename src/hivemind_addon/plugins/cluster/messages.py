"""What crosses a cluster: between a member and its coordinator, and between a node and the engine.

Instants are of the sender's monotonic clock; whoever receives them translates. Nothing of a request's words crosses,
and of its credential only a hash.
"""

from msgspec import Raw, Struct, field

from hivemind_addon.kernel.pool import PoolSettings, PoolTold
from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.values.command import Cancel, SchedulerCommand
from hivemind_addon.kernel.values.decision import ActiveBlock, Verdict
from hivemind_addon.kernel.values.events import Event
from hivemind_addon.kernel.values.spend import AccountState, Budget, Shortage, Spend
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand, Hints, PoolKey, Reason, Ticket

VERSION = 1
"""Of what crosses. Fields are added with a default, at the end; a change of meaning, or a new value of an enum that
crosses, is another version."""


# From a member -----------------------------------------------------------------------------------------------------


class Waiting(Struct, frozen=True, gc=False):
    """A ticket that waits, announced to a new coordinator."""

    ticket: Ticket
    history: History
    not_before: float
    """It backs off until then."""


class Flying(Struct, frozen=True, gc=False):
    """An attempt in flight, announced to a new coordinator."""

    ticket: Ticket
    history: History
    """The running attempt is started in it."""
    demand: Demand
    admitted_at: float


class Uses(Struct, frozen=True, tag="uses", gc=False):
    """What a profile says of a pool, before the pool's first ticket and when it changes."""

    pool: PoolKey
    settings: PoolSettings


class Bypassing(Struct, frozen=True, tag="bypassing", gc=False):
    """So many attempts are upstream that nobody admitted."""

    pool: PoolKey
    count: int


class Ended(Struct, frozen=True, tag="ended", gc=False):
    """An attempt ended, and what follows is decided."""

    number: int
    """Counts the ends of one member."""
    ticket_id: str
    attempt: int
    result: AttemptResult
    verdict: Verdict
    job: str = ""
    """The job with which the attempt ended; empty: none."""
    spending: "Spending | None" = None
    """For a coordinator that does not know the job."""


class Spending(Struct, frozen=True, gc=False):
    """What an attempt came to that ended, as long as no coordinator has kept that."""

    number: int
    """As in `Ended`."""
    ticket_id: str
    """Empty: the sum of many."""
    agent: str
    group: str
    budgets: tuple[Budget, ...]
    """The agents file's; others of its agent, group and everyone count it, too."""
    spend: Spend
    at: float
    ended: Ended | None = None
    """For a coordinator that knows the attempt; None: none does."""


class Join(Struct, frozen=True, tag="join", gc=False):
    """The first message of a session: everything that the member has; what was known of it before counts no more."""

    waiting: tuple[Waiting, ...]
    flying: tuple[Flying, ...]
    spent: tuple[Spending, ...]
    uses: tuple[Uses, ...]
    bypassing: tuple[Bypassing, ...]
    identity: str = ""
    """How its proxy tells agents and accounts apart: all members have to do it alike."""


class Arrived(Struct, frozen=True, tag="arrived", gc=False):
    """A ticket asks for admission."""

    ticket: Ticket


class HeadCame(Struct, frozen=True, tag="head", gc=False):
    """A response's head came."""

    ticket_id: str
    attempt: int
    hints: Hints
    answered: bool


class Gone(Struct, frozen=True, tag="gone", gc=False):
    """A ticket ended at its member: its client went, or it was shed there. Admitted meanwhile, it was never sent."""

    ticket_id: str


class Commanded(Struct, frozen=True, tag="commanded", gc=False):
    """A person's command that needs no answer."""

    command: SchedulerCommand


class Inquiry(Struct, frozen=True, tag="asks", gc=False):
    """A question of the proxy around a node."""

    id: int
    what: bytes


class Leaves(Struct, frozen=True, tag="leaves", gc=False):
    """The member ends, and has nothing more."""


FromMember = Join | Uses | Bypassing | Arrived | HeadCame | Ended | Gone | Commanded | Inquiry | Leaves


# From the coordinator ----------------------------------------------------------------------------------------------


class Welcome(Struct, frozen=True, tag="welcome", gc=False):
    """The answer to a join: the member's tickets are in the whole."""

    pools: tuple[PoolTold, ...]
    accounts: dict[str, str]
    """The account that stands for another one, by that one."""


class Admits(Struct, frozen=True, tag="admits", gc=False):
    """A ticket goes upstream now."""

    ticket_id: str
    attempt: int
    pool: PoolKey
    demand: Demand
    in_flight: int
    is_probe: bool


class Sheds(Struct, frozen=True, tag="sheds", gc=False):
    """A ticket ends: its client is asked to come back."""

    ticket_id: str
    reason: Reason
    come_back_s: float


class Refuses(Struct, frozen=True, tag="refuses", gc=False):
    """A ticket ends for good."""

    ticket_id: str
    cause: Shortage | ActiveBlock | Cancel


class Ends(Struct, frozen=True, tag="ends", gc=False):
    """An attempt is to be ended: its client has come back, or a person has cancelled it."""

    ticket_id: str
    attempt: int
    called_off: bool


class Tells(Struct, frozen=True, tag="tells", gc=False):
    """Events of the member's tickets, or of everybody's pools."""

    events: tuple[Event, ...]


class PoolsChanged(Struct, frozen=True, tag="pools", gc=False):
    """How pools stand now."""

    pools: tuple[PoolTold, ...]


class AccountsChanged(Struct, frozen=True, tag="accounts", gc=False):
    """As in `Welcome`."""

    accounts: dict[str, str]


class Beat(Struct, frozen=True, tag="beat", gc=False):
    """The coordinator is there."""

    members: int
    kept: int
    """The number of the member's newest end that outlives the coordinator."""
    kept_version: int


class Answers(Struct, frozen=True, tag="answers", gc=False):
    """The answer to `Inquiry`."""

    id: int
    answer: bytes


FromCoordinator = Welcome | Admits | Sheds | Refuses | Ends | Tells | PoolsChanged | AccountsChanged | Beat | Answers


class Packet(Struct, frozen=True, array_like=True, gc=False):
    """What is published at once, from one node to another."""

    version: int
    sender: str
    epoch: int
    """Whose coordinator sends it, or is meant."""
    session: int
    """Counts the joins of the member."""
    to_coordinator: bool
    at: float
    """The sender's monotonic clock."""
    ack: int
    """The number of the newest message that came, with all before it."""
    first: int
    """The number of the first one of `messages`; the others follow it."""
    messages: list[Raw] = field(default_factory=list)


# What lasts ---------------------------------------------------------------------------------------------------------


class Flights(Struct, frozen=True, gc=False):
    """What a member has in flight in one pool."""

    pool: PoolKey
    count: int


class KnownMember(Struct, frozen=True, gc=False):
    """A member as its coordinator knew it last."""

    counted: int
    """The number of its newest end that is counted in what is kept."""
    flights: tuple[Flights, ...] = ()
    presumed: tuple[Spending, ...] = ()
    """What it had in flight when it was lost, until it comes back; `at` is the age here."""
    is_here: bool = True
    """False: it has left, or was lost; the number is still needed for when it comes back."""


class Kept(Struct, frozen=True, gc=False):
    """What outlives a coordinator."""

    epoch: int = 0
    """0: no coordinator has put it together; it is what a process's own files keep."""
    version: int = 0
    learned: object = None
    orders: object = None
    """Exported as if it were put together at the epoch's second 0."""
    standings: tuple[AccountState, ...] = ()
    members: dict[str, KnownMember] = field(default_factory=dict)
    limits: tuple[tuple[PoolKey, int], ...] = ()
    """How many at a time each pool was seen to take."""


# Between a node and the engine --------------------------------------------------------------------------------------


class Publish(Struct, frozen=True):
    """Send an envelope to a node; it may be lost."""

    to: str
    data: bytes


class TakeLease(Struct, frozen=True):
    """Ask who is the coordinator, and become it where nobody is.

    In one step at the engine: held by this node, the lease goes on for `ttl_s`; held by another in `epoch` or a later
    one, nothing changes; held by nobody, or in an epoch before `epoch` (the engine has lost its memory), where `wants`:
    with `renews` and no later epoch given out, the node goes on in `epoch`, else a new epoch begins, above `epoch` and
    above all that were given out.
    """

    epoch: int
    """The newest that this node knows of."""
    renews: bool
    """Whether that one is its own."""
    wants: bool
    ttl_s: float
    asked_at: float


class Resign(Struct, frozen=True):
    """Give the lease back, if it is this node's."""

    epoch: int


class StoreKept(Struct, frozen=True):
    """Write what is kept, unless the lease is another's or what is there is of a later epoch."""

    epoch: int
    data: bytes


class Fetch(Struct, frozen=True):
    """Read what is kept."""


EngineRequest = Publish | TakeLease | Resign | StoreKept | Fetch


class Leased(Struct, frozen=True):
    """The answer to `TakeLease`."""

    holder: str
    """Empty: nobody."""
    epoch: int
    asked_at: float
    forgot: bool = False
    """The engine had given out no epoch, or none as new as the one that was told: it has lost its memory, and another
    node may hold a lease that it does not know of."""


class Fetched(Struct, frozen=True):
    """The answer to `Fetch`; None: nothing is kept."""

    data: bytes | None
    age_s: float = 0.0
    """Since it was stored, by the engine's clock: machines' own may be apart."""


class Stored(Struct, frozen=True):
    """The answer to `StoreKept`: whether it was written."""

    done: bool


class EngineFailed(Struct, frozen=True):
    """A request got no answer: the engine is not there, or refuses it."""

    request: TakeLease | Resign | StoreKept | Fetch
    why: str


EngineAnswer = Leased | Fetched | Stored | EngineFailed
