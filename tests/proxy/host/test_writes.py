"""What one turn of the event loop sends goes in one write for each connection."""

from mitmproxy.connection import Server
from mitmproxy.proxy import commands

from hivemind_addon.proxy.host.writes import MOST_JOINED_BYTES, Flush, in_one_write

ONE, OTHER = Server(address=("one.test", 1)), Server(address=("other.test", 2))


def written(*turn):
    """Bytes by connection, or the command itself."""
    return [
        (one.connection, one.data) if isinstance(one, commands.SendData) else one
        for one in in_one_write(iter(turn), then=list)
    ]


def test_what_goes_to_one_connection_is_joined_in_its_order():
    pieces = [commands.SendData(ONE, b"head"), commands.SendData(OTHER, b"x"), commands.SendData(ONE, b"body")]
    assert written(*pieces) == [(ONE, b"headbody"), (OTHER, b"x")]


def test_nothing_that_was_sent_before_a_command_comes_after_it():
    close = commands.CloseConnection(ONE)
    turn = (commands.SendData(ONE, b"a"), commands.SendData(ONE, b"b"), close, commands.SendData(OTHER, b"c"))
    assert written(*turn) == [(ONE, b"ab"), close, (OTHER, b"c")]


def test_a_flush_writes_at_once_and_is_no_command_of_the_hosts():
    assert written(commands.SendData(ONE, b"first"), Flush(), commands.SendData(ONE, b"later")) == [
        (ONE, b"first"),
        (ONE, b"later"),
    ]


def test_a_large_body_is_not_copied_to_be_joined():
    body = b"x" * MOST_JOINED_BYTES
    turn = [commands.SendData(ONE, b"head"), commands.SendData(ONE, body), commands.SendData(ONE, b"end")]
    assert [command.data is body for command in in_one_write(turn, then=list)] == [False, True, False]


def test_the_end_of_a_turn_comes_after_all_that_it_sends():
    said = []
    turn = in_one_write(iter([commands.SendData(ONE, b"a")]), then=lambda: said.append("over"))
    assert [(command.data, list(said)) for command in turn] == [(b"a", [])]
    assert said == ["over"]
