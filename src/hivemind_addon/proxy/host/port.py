"""What the HTTP layer and the exchange say to each other: the seam between mitmproxy's events and our decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mitmproxy import http
    from mitmproxy.connection import Client
    from mitmproxy.proxy.commands import StartHook
    from mitmproxy.websocket import WebSocketMessage

    from hivemind_addon.formats.wire.outcome import TransportTrouble


class Next(Enum):
    """What the layer does after a wait."""

    SEND = "send"
    """Go upstream: admitted, or past the scheduler."""
    PULSE = "pulse"
    """Send a keep-alive to the client and wait on."""
    REFUSE = "refuse"
    """Answer with `Exchange.refusal`."""
    LEAVE = "leave"
    """The client went: nothing to answer."""


class Handling(Enum):
    """What the layer does with an answer whose head has come."""

    COLLECT = "collect"
    PEEK = "peek"
    PASS = "pass"  # noqa: S105 - no password
    """It is judged already: it goes to the client as it comes, and nothing of it is kept."""


class Look(Enum):
    """What the beginning of a streamed answer says so far."""

    HOLD_BACK = "hold back"
    COMPLETE = "complete"
    """It is all here, whatever comes yet: it is to be judged."""
    COLLECT = "collect"
    """It is no stream, or another one than its label says: what has come is to be heard."""
    RELEASE = "release"
    FAILED = "failed"


class Stage(Enum):
    """How far an attempt whose request was sent has come."""

    AWAITED = "awaited"
    """No head yet."""
    PEEKED = "peeked"
    """A streamed answer, kept back."""
    COLLECTED = "collected"
    """Another answer, not complete yet."""
    STREAMED = "streamed"
    """The client has seen part of it."""


class Alarm(Enum):
    """What is due while an attempt runs."""

    NOTHING = "nothing"
    PULSE = "pulse"
    RELEASE = "release"
    COMPLETE = "complete"
    """It has said that it is complete, and its transport goes on."""
    STALLED = "stalled"


class Delivered(Protocol):
    """What has come of a streamed answer; it grows until the answer ends."""

    def __bytes__(self) -> bytes: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What an attempt sends in place of the flow's request, and where."""

    request: http.Request = field(repr=False)
    """Its host, port and scheme say where it goes. It may have a key of ours: it is in no flow."""


class ExchangePort(Protocol):
    """One scheduled request as the layer needs it. No method raises."""

    next: Next
    """What to do now; set by `enter` or by the addon's answer to `HivemindHoldHook`."""
    refusal: http.Response | None
    """The answer for `Next.REFUSE`, and to a request that was called off."""
    over: bool
    """The ticket has ended."""
    may_repeat: bool
    """False: what failed is not sent again, though waiting might cure it; `withheld` tells of that."""
    withheld: bool
    """The last attempt's failure ended it only because it may not be sent again."""
    outgoing: Outgoing | None
    """What the admitted attempt sends in place of the flow's request; None: that, as it came."""

    interim: bytes
    """The interim response that renews the held client's time-out; empty: none does."""

    @property
    def ticket_id(self) -> str:
        """What the request is known by."""

    @property
    def keep_alive(self) -> bytes:
        """What the client of a silent stream gets from time to time, and overlooks."""

    def enter(self) -> bool:
        """Ask for admission. True: `next` is decided already, and no wait is needed."""

    def client_gone(self) -> None:
        """The client went (any time, any number of times)."""

    def call_off(self) -> None:
        """A person cancelled the running attempt: it is over now, and `refusal` is the answer."""

    def sent(self) -> None:
        """The attempt's request is on its way."""

    def head(self, response: http.Response) -> Handling:
        """The attempt's response head came."""

    def look(self, chunk: bytes) -> Look:
        """A chunk of a streamed answer came, nothing of which has gone to the client."""

    def tee(self, chunk: bytes) -> bytes:
        """A chunk of a streamed answer goes to the client; its decoded bytes are returned."""

    def decoded_so_far(self) -> bytes:
        """The decoded bytes of all chunks that `look` saw in this attempt."""

    def collected(self, response: http.Response, body: bytes) -> bool:
        """A complete answer is here, nothing of which has gone to the client. True: try again."""

    def failed(self, trouble: TransportTrouble, detail: str, *, client_saw_bytes: bool) -> bool:
        """The attempt ended without a complete answer. True: try again."""

    def failed_in_stream(self) -> bool:
        """`look` said FAILED. True: try again."""

    def ended(self) -> bool:
        """A streamed answer ended while all of it was kept back. True: try again; else it goes to the client."""

    def released(self, delivered: Delivered) -> None:
        """A streamed answer begins to go to the client."""

    def streamed(self) -> None:
        """A streamed answer has gone to the client to its end."""

    def heard(self, chunk: bytes) -> bool:
        """Bytes of an answer that is collected came. True: they begin a stream, to be looked at from the first one."""

    @property
    def is_ending(self) -> bool:
        """Whether the answer has said that it is complete, and its transport has not: an alarm will be due soon."""

    def complete(self, body: bytes) -> bool:
        """Whether the answer has said that it is complete, whatever its transport does. `body`: what was collected."""

    def next_alarm_s(self, stage: Stage) -> float | None:
        """Seconds until `alarm` wants to be asked; None: never. Bytes that come meanwhile put it off."""

    def alarm(self, stage: Stage) -> Alarm:
        """What is due now."""

    def cut_error(self, detail: str) -> bytes:
        """The error event that ends an answer which the provider cut; empty: the client is to see the cut."""

    def committed_error(self, response: http.Response | None, detail: str) -> bytes:
        """The one error event that ends a stream whose head has gone out."""

    def finished(self) -> None:
        """The stream is over, in whatever way: the last net, nothing may keep a slot."""

    def trip(self, where: str, error: Exception) -> None:
        """An exception of ours in the layer itself: logged, counted; the ticket's slot is released."""


MAX_PAGE_BODY_BYTES = 64 * 1024
"""Of a request for one of the proxy's own pages; of a longer one only the first bytes are kept, and one more."""
type TakesBody = Callable[[bytes], http.Response]
"""Makes the answer of such a page. Never raises."""
Written = tuple[bool, bytes] | None
"""What a WebSocket's layer writes: a text frame, to the client (True) or to the server; None: it closes both sides."""


class SocketPort(Protocol):
    """One scheduled WebSocket as its layer needs it. No method raises."""

    def came(self, message: WebSocketMessage) -> None:
        """A message came, which goes on unless it is dropped here."""

    def take(self) -> list[Written]:
        """What is to be written now, before that message."""

    def closed(self, *, by_client: bool) -> None:
        """The connection has ended (any number of times)."""


class Port(Protocol):
    """What the layer needs of the addon."""

    redirected: dict[str, tuple[str, int]]
    """Server connection id → its own address, of the ones that a redirect sent elsewhere."""

    def page(
        self, request: http.Request, client: Client, destination: tuple[str, int] | None
    ) -> http.Response | TakesBody | None:
        """The answer to a request for one of the proxy's own pages, or what makes it once the request's body is there.

        None: it is for somebody else. Never raises. `destination`: of the tunnel that the request came through, or of
        the reverse proxy.
        """

    def is_ours(self, flow: http.HTTPFlow) -> bool:
        """Whether the request is to be scheduled, judged from its head. Never raises."""

    def tap(self, flow: http.HTTPFlow, response: http.Response) -> bool | Callable[[bytes], bytes]:
        """What sees each piece of an answer that is not scheduled; True: nothing does. Never raises."""

    def passes_body(self, flow: http.HTTPFlow) -> bool:
        """Whether the body of a request that is ours goes on as it comes. Never raises."""

    def hold_reading(self, client: Client, *, held: bool) -> None:
        """Read nothing more of a client, whose request's body waits here; or go on. Never raises."""

    def make_exchange(self, flow: http.HTTPFlow) -> ExchangePort | None:
        """Make the exchange of a complete request; None when it is not ours after all. Never raises."""

    def make_socket(self, flow: http.HTTPFlow) -> SocketPort | None:
        """Of a flow that has become a WebSocket; None: it passes unscheduled. Never raises."""

    def call_hook(self, hook: StartHook) -> StartHook | None:
        """Call the addons that listen to a hook of a flow. None: it is over; else what the layer is to wait for."""
