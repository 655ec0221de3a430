"""TLS of a connection that is open, in few calls.

pyOpenSSL makes a buffer of 64 KB for each read, asks a second time for what is left, and raises an exception to say
that nothing is; each piece passes five generators of mitmproxy's on its way through a TLS layer. Here a read is a few
calls of OpenSSL's, with the same results. A handshake and all that fails goes the host's own way.

Private names of mitmproxy's and of pyOpenSSL's are used, as in `proxy/host/stream.py`; where they are others, TLS stays
as it is.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.tls import ClientTLSLayer, ServerTLSLayer, TLSLayer
from mitmproxy.proxy.tunnel import TunnelState
from OpenSSL import SSL

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger("hivemind")

NAMES = ("SSL_read", "SSL_write", "SSL_get_error", "SSL_ERROR_WANT_READ", "BIO_read", "BIO_write")
"""What of OpenSSL's we use."""
_ROOM_BYTES = 64 * 1024
_lib: Any = getattr(SSL, "_lib", None)
_ffi: Any = getattr(SSL, "_ffi", None)
_room = _ffi.new("char[]", _ROOM_BYTES) if _ffi else None
"""What a call reads; the event loop's thread alone uses it, and empties it at once."""


class QuickTls(TLSLayer):
    """A TLS layer of which an open connection's data passes in few calls."""

    wait_for_clienthello: bool = False
    """A server's says so where it lets its layer inside speak first."""

    def handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        """Handle it; data has no step in between as long as no handshake is under way."""
        if type(event) is events.DataReceived and self._paused is None and self.debug is None:
            if event.connection is not self.tunnel_connection:
                if self.tunnel_state is not TunnelState.ESTABLISHING and not self.wait_for_clienthello:
                    return self._tell(event)
            elif self.tunnel_state is TunnelState.OPEN:
                return self.receive_data(event.data)
        return super().handle_event(event)

    def _tell(self, event: events.Event) -> layer.CommandGenerator[None]:
        """Give it to the layer inside; what that writes to this connection is encrypted."""
        conn = self.conn
        for command in self.child_layer.handle_event(event):
            if isinstance(command, commands.SendData):
                if command.connection is conn or command.connection == conn:
                    yield from self.send_data(command.data)
                else:
                    yield command
            elif isinstance(command, commands.ConnectionCommand) and command.connection == conn:  # it may have to wait
                yield from self._Layer__process(self._handle_command(command))  # type: ignore[attr-defined]
            else:
                yield command

    def receive_data(self, data: bytes) -> layer.CommandGenerator[None]:
        """Decrypt it."""
        ssl = self.tls._ssl  # noqa: SLF001
        if data:
            _lib.BIO_write(self.tls._into_ssl, _ffi.from_buffer(data), len(data))  # noqa: SLF001
        pieces = []
        while (size := _lib.SSL_read(ssl, _room, _ROOM_BYTES)) > 0:
            pieces.append(_ffi.unpack(_room, size))
        is_closed = False
        if _lib.SSL_get_error(ssl, size) != _lib.SSL_ERROR_WANT_READ:
            is_closed, trouble = self._why(size)
            if trouble is not None:
                yield commands.Log(f"TLS Error: {trouble}", logging.WARNING)
        yield from self.tls_interact()
        tell = self._tell if self.tunnel_state is TunnelState.OPEN else self.event_to_child
        if pieces:
            yield from tell(events.DataReceived(self.conn, pieces[0] if len(pieces) == 1 else b"".join(pieces)))
        if is_closed:
            self.conn.state &= ~ConnectionState.CAN_READ
            yield from tell(events.ConnectionClosed(self.conn))

    def _why(self, result: int) -> tuple[bool, SSL.Error | None]:
        """Why nothing more can be read: whether the peer has closed, and what is wrong."""
        try:
            self.tls._raise_ssl_error(self.tls._ssl, result)  # noqa: SLF001
        except SSL.ZeroReturnError:
            return True, None
        except SSL.WantReadError:
            return False, None
        except SSL.Error as error:
            return False, error
        return False, None

    def send_data(self, data: bytes) -> layer.CommandGenerator[None]:
        """Encrypt it; OpenSSL takes a record at a time."""
        ssl, size, sent = self.tls._ssl, len(data), 0  # noqa: SLF001
        begin = _ffi.from_buffer(data)
        while sent < size:
            taken = _lib.SSL_write(ssl, begin + sent, size - sent)
            if taken <= 0:
                with suppress(SSL.ZeroReturnError, SSL.SysCallError):  # as the host does: it is for nobody
                    self.tls._raise_ssl_error(ssl, taken)  # noqa: SLF001
                break
            sent += taken
        yield from self.tls_interact()

    def tls_interact(self) -> layer.CommandGenerator[None]:
        """Send what is encrypted."""
        while (size := _lib.BIO_read(self.tls._from_ssl, _room, _ROOM_BYTES)) > 0:  # noqa: SLF001
            yield commands.SendData(self.conn, _ffi.unpack(_room, size))


class QuickClientTls(QuickTls, ClientTLSLayer):
    """Of a client's connection."""


class QuickServerTls(QuickTls, ServerTLSLayer):
    """Of a provider's."""


def quicken(layers: Iterable[layer.Layer]) -> None:
    """Let those that are TLS over TCP take the short way from now on."""
    if not _is_as_we_know():
        return
    for one in layers:
        if type(one) is ClientTLSLayer and not one.is_dtls:
            one.__class__ = QuickClientTls
        elif type(one) is ServerTLSLayer and not one.is_dtls:
            one.__class__ = QuickServerTls


@cache
def _is_as_we_know() -> bool:
    known = _room is not None and all(hasattr(_lib, name) for name in NAMES)
    if not known:
        logger.warning("hivemind: pyOpenSSL is another than we know; TLS takes longer")
    return known
