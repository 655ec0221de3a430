"""What a node has to send: messages on its links to other nodes, and requests to the engine.

Messages gather on their link until the outbox is drained; each link's go in one envelope then.
"""

from collections.abc import Callable

import msgspec
from msgspec import Raw

from hivemind_addon.formats.base.json_values import packed_decoder
from hivemind_addon.plugins.cluster.channel import Channel
from hivemind_addon.plugins.cluster.messages import (
    VERSION,
    EngineRequest,
    FromCoordinator,
    FromMember,
    Packet,
    Publish,
)

_NEVER = float("inf")
_encode = msgspec.msgpack.Encoder().encode
_decode_of_member = packed_decoder(FromMember)
_decode_of_coordinator = packed_decoder(FromCoordinator)


class NodeLink[M]:
    """One end of a session with another node."""

    __slots__ = ("channel", "epoch", "heard_at", "is_joined", "sent_at", "session", "to", "to_coordinator")

    def __init__(
        self, to: str, *, epoch: int, session: int, to_coordinator: bool, channel: Channel[M | None], now: float
    ) -> None:
        self.to = to
        self.epoch = epoch
        self.session = session
        self.to_coordinator = to_coordinator
        self.channel = channel
        self.heard_at = now
        self.sent_at = -_NEVER
        self.is_joined = False
        """The join was answered (at the member), or has come (at the coordinator)."""

    def __repr__(self) -> str:
        return f"<NodeLink to {self.to}, session {self.session} of epoch {self.epoch}, {self.channel!r}>"


type AnyLink = NodeLink[FromMember] | NodeLink[FromCoordinator]


class Outbox:
    """Of one node; `drain` it when `wake` was called."""

    def __init__(self, *, me: str, resend_s: float, ack_s: float, wake: Callable[[], None]) -> None:
        """`wake`: there is something to send again. The times are a `Channel`'s."""
        self._me = me
        self._resend_s = resend_s
        self._ack_s = ack_s
        self._wake = wake
        self._requests: list[EngineRequest] = []
        self._with_news: dict[AnyLink, None] = {}

    def __repr__(self) -> str:
        return f"<Outbox, {len(self._requests)} requests, {len(self._with_news)} links with news>"

    def link_to_coordinator(self, to: str, *, epoch: int, session: int, now: float) -> NodeLink[FromCoordinator]:
        """A member's end of a session."""
        channel = Channel(decode=_read_of_coordinator, resend_s=self._resend_s, ack_s=self._ack_s)
        return NodeLink(to, epoch=epoch, session=session, to_coordinator=True, channel=channel, now=now)

    def link_to_member(self, to: str, *, epoch: int, session: int, now: float) -> NodeLink[FromMember]:
        """The coordinator's end of one."""
        channel = Channel(decode=_read_of_member, resend_s=self._resend_s, ack_s=self._ack_s)
        return NodeLink(to, epoch=epoch, session=session, to_coordinator=False, channel=channel, now=now)

    def ask(self, request: EngineRequest) -> None:
        """Ask the engine for something."""
        self._requests.append(request)
        self._wake()

    def send(self, link: AnyLink, message: FromMember | FromCoordinator) -> None:
        """Put a message into the link's next envelope."""
        link.channel.send(message)
        self.mark(link)

    def mark(self, link: AnyLink) -> None:
        """Something is to be sent on this link, if only an acknowledgement."""
        is_first = not self._with_news
        self._with_news[link] = None
        if is_first:
            self._wake()

    def publish(self, link: AnyLink, now: float, *, ack: int = 0, first: int, messages: tuple[Raw, ...] = ()) -> None:
        """Send an envelope: the first one of a session has `first` 1, and 0 asks for a new session."""
        link.sent_at = now
        envelope = Packet(
            version=VERSION,
            sender=self._me,
            epoch=link.epoch,
            session=link.session,
            to_coordinator=link.to_coordinator,
            at=now,
            ack=ack,
            first=first,
            messages=list(messages),
        )
        self._requests.append(Publish(link.to, _encode(envelope)))

    def drop(self, link: AnyLink) -> None:
        """The session is over: nothing more is sent."""
        self._with_news.pop(link, None)

    def drop_members(self) -> None:
        """The same of all links to members."""
        self._with_news = {link: None for link in self._with_news if link.to_coordinator}

    def drain(self, now: float) -> list[EngineRequest]:
        """What the engine is to be asked, since the last call."""
        links, self._with_news = self._with_news, {}
        for link in links:
            ack, first, messages = link.channel.take(now)
            self.publish(link, now, ack=ack, first=first, messages=tuple(messages))
            if link.channel.has_news:
                self.mark(link)
        requests, self._requests = self._requests, []
        return requests


def _read_of_member(message: Raw) -> FromMember | None:
    """None: a newer version's or a damaged message, which is overlooked."""
    try:
        read: FromMember = _decode_of_member(message)
    except msgspec.DecodeError:
        return None
    return read


def _read_of_coordinator(message: Raw) -> FromCoordinator | None:
    """None: a newer version's or a damaged message, which is overlooked."""
    try:
        read: FromCoordinator = _decode_of_coordinator(message)
    except msgspec.DecodeError:
        return None
    return read
