import pytest

from tests.engine_server import EngineServer


def test_a_server_comes_back_at_its_address_empty_or_with_what_it_had_written():
    server = EngineServer(persists=True)
    try:
        url, first = server.start().url, server.pid
        assert server.send("SET a 1").startswith(b"+OK")
        server.restart(empty=False)
        assert (server.url, server.send("GET a")) == (url, b"$1\r\n1\r\n")
        assert server.pid != first
        server.restart()
        assert server.send("GET a") == b"$-1\r\n"
    finally:
        server.stop()
    assert not server.runs
    with pytest.raises(FileNotFoundError):
        server.send("PING")


def test_every_test_has_it_running_and_empty(engine):
    assert engine.send("DBSIZE") == b":0\r\n"
