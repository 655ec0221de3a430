"""TLS of an open connection, beside mitmproxy's own: the same comes out, whatever comes in."""

import logging
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.quic import ServerQuicLayer
from mitmproxy.proxy.layers.tls import ClientTLSLayer, ServerTLSLayer
from mitmproxy.proxy.tunnel import TunnelState
from OpenSSL import SSL

from hivemind_addon.proxy.host import tls
from hivemind_addon.sim.certificate import write_certificates
from tests.proxy.gate.playbook import make_context

SIZES = (1, 100, 16_384, 16_385, 65_536, 700_000)
OURS = {ServerTLSLayer: tls.QuickServerTls, ClientTLSLayer: tls.QuickClientTls}


class Echo(layer.Layer):
    """Says back what comes, and what it is told to say."""

    def __init__(self, context):
        super().__init__(context)
        self.heard = []
        self.says = []

    def _handle_event(self, event):
        self.heard.append((type(event).__name__, event.connection, getattr(event, "data", None)))
        yield from self.says
        if isinstance(event, events.DataReceived):
            yield commands.SendData(event.connection, event.data)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return write_certificates(tmp_path_factory.mktemp("tls"), "localhost", datetime.now(UTC))


def pair(certificates):
    """Two ends of one connection, its handshake done."""
    ours, theirs = SSL.Context(SSL.TLS_METHOD), SSL.Context(SSL.TLS_METHOD)
    theirs.use_certificate_chain_file(str(certificates.certificate))
    theirs.use_privatekey_file(str(certificates.key))
    client, server = SSL.Connection(ours), SSL.Connection(theirs)
    client.set_connect_state()
    server.set_accept_state()
    for _ in range(4):
        for one, other in ((client, server), (server, client)):
            with suppress(SSL.WantReadError):
                one.do_handshake()
            carry(one, other)
    return client, server


def carry(one, other):
    while data := drained(one):
        other.bio_write(data)


def drained(one):
    try:
        return one.bio_read(1 << 20)
    except SSL.WantReadError:
        return b""


def read(one):
    got = b""
    while True:
        try:
            got += one.recv(65535)
        except SSL.WantReadError:
            return got
        except SSL.Error as error:
            return got, str(error)


class Played:
    """A TLS layer of an open connection, and the peer."""

    def __init__(self, kind, certificates, *, quick):
        self.context = make_context()
        self.context.server.state = self.context.client.state = ConnectionState.OPEN
        if kind is ClientTLSLayer:
            self.context.layers.append(layer.NextLayer(self.context))
        self.layer = kind(self.context)
        end, self.peer = pair(certificates)
        self.layer.tls, self.layer.tunnel_state = end, TunnelState.OPEN
        self.layer.child_layer = self.echo = Echo(self.context)
        if quick:
            tls.quicken([self.layer])
            assert type(self.layer) is OURS[kind]
        self.logs = []
        self.closed = []

    def tell(self, event):
        for command in self.layer.handle_event(event):
            match command:
                case commands.SendData(connection=connection, data=data):
                    assert connection is self.layer.conn
                    self.peer.bio_write(data)
                case commands.Log():
                    self.logs.append((command.message, command.level))
                case commands.CloseConnection():
                    self.closed.append(type(command).__name__)

    def come(self, data):
        self.tell(events.DataReceived(self.layer.conn, data))

    def seen(self):
        heard = [(what, connection is self.layer.conn, data) for what, connection, data in self.echo.heard]
        return heard, self.logs, self.closed, self.layer.conn.state, read(self.peer)


def both(certificates, kind, play):
    """What is seen of mitmproxy's layer and of ours."""
    seen = []
    for quick in (False, True):
        played = Played(kind, certificates, quick=quick)
        play(played)
        seen.append(played.seen())
    return seen


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("size", SIZES)
def test_data_goes_in_and_out(certificates, kind, size):
    def play(played):
        played.peer.sendall(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
        data = drained(played.peer)
        for at in range(0, len(data), 250_000):
            played.come(data[at : at + 250_000])

    theirs, ours = both(certificates, kind, play)
    assert ours == theirs
    assert len(ours[-1]) == size


@pytest.mark.parametrize("kind", OURS)
def test_records_that_come_by_halves_wait_for_the_rest(certificates, kind):
    def play(played):
        played.peer.sendall(b"one")
        played.peer.sendall(b"two")
        data = drained(played.peer)
        for at in range(0, len(data), 7):
            played.come(data[at : at + 7])

    theirs, ours = both(certificates, kind, play)
    assert ours == theirs
    assert ours[-1] == b"onetwo"


@pytest.mark.parametrize("kind", OURS)
def test_an_end_is_told_after_what_came_before_it(certificates, kind):
    def play(played):
        played.peer.sendall(b"last")
        played.peer.shutdown()
        played.come(drained(played.peer))

    theirs, ours = both(certificates, kind, play)
    assert ours == theirs
    assert [what for what, _, _ in ours[0]] == ["DataReceived", "ConnectionClosed"]
    assert ours[3] is ConnectionState.CAN_WRITE


@pytest.mark.parametrize("kind", OURS)
def test_what_is_no_tls_is_told_and_ends_nothing_else(certificates, kind):
    def play(played):
        played.peer.sendall(b"good")
        data = bytearray(drained(played.peer))
        data[-1] ^= 1
        played.come(bytes(data))
        played.come(b"no record at all" * 10)

    theirs, ours = both(certificates, kind, play)
    assert ours == theirs
    assert ours[1]
    assert {level for _, level in ours[1]} == {logging.WARNING}


@pytest.mark.parametrize("kind", OURS)
def test_what_is_said_after_our_end_fails_alike(certificates, kind):
    def play(played):
        played.layer.tls.shutdown()
        drained(played.layer.tls)
        played.peer.sendall(b"late")
        with pytest.raises(SSL.Error, match="protocol is shutdown"):
            played.come(drained(played.peer))

    theirs, ours = both(certificates, kind, play)
    assert ours == theirs


@pytest.mark.parametrize("kind", OURS)
def test_other_connections_data_passes_and_closing_goes_the_hosts_way(certificates, kind):
    def play(played):
        other = played.context.client if kind is ServerTLSLayer else played.context.server
        played.echo.says = [
            commands.Log("said"),
            commands.CloseConnection(played.layer.conn),
        ]
        for command in played.layer.handle_event(events.DataReceived(other, b"plain")):
            if isinstance(command, commands.SendData):
                assert command.connection is other
                played.logs.append(command.data)
            elif isinstance(command, commands.Log):
                played.logs.append(command.message)
            else:
                played.closed.append(type(command).__name__)

    theirs, ours = both(certificates, kind, play)
    assert ours == theirs
    assert ours[1] == ["said", b"plain"]
    assert ours[2] == ["CloseConnection"]


def test_during_a_handshake_what_comes_else_waits(certificates):
    played = Played(ServerTLSLayer, certificates, quick=True)
    played.layer.tunnel_state = TunnelState.ESTABLISHING
    played.tell(events.DataReceived(played.context.client, b"early"))
    assert played.echo.heard == []


def test_another_pyopenssl_is_told_once_and_left_alone(certificates, monkeypatch, caplog):
    tls._is_as_we_know.cache_clear()
    monkeypatch.setattr(tls, "NAMES", (*tls.NAMES, "SSL_gone"))
    played = Played(ServerTLSLayer, certificates, quick=False)
    tls.quicken([played.layer])
    tls.quicken([played.layer])
    assert type(played.layer) is ServerTLSLayer
    assert len(caplog.records) == 1
    assert "TLS takes longer" in caplog.text
    tls._is_as_we_know.cache_clear()


def test_datagrams_stay_as_they_are(certificates):
    played = Played(ServerTLSLayer, certificates, quick=False)
    played.layer.conn.transport_protocol = "udp"
    tls.quicken([played.layer])
    assert type(played.layer) is ServerTLSLayer
    assert not issubclass(ServerQuicLayer, ServerTLSLayer)
