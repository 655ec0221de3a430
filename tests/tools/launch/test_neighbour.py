"""Who listens on a port, found out by real sockets."""

import json
import os
import socket
import threading
from contextlib import contextmanager

from hivemind_addon.tools.launch import neighbour
from hivemind_addon.tools.launch.claim import supervise
from hivemind_addon.tools.launch.neighbour import find_neighbour, find_stranger, free_port, is_taken
from tests.cases import each

HEALTH = {
    "status": "ok",
    "hivemind": True,
    "pid": 77,
    "user": "ada",
    "home": "/home/ada",
    "machine": socket.gethostname(),
}


@contextmanager
def listening(answer=None):
    """A port, where each connection is answered with these bytes; None: with nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked, over = [], threading.Event()

        def serve():
            while not over.is_set():
                connection, _ = server.accept()
                with connection:
                    asked.append(connection.recv(4096))
                    if answer is not None:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], asked
        finally:
            over.set()
            with socket.create_connection(server.getsockname()) as last:
                last.sendall(b"over")
            thread.join()


def http(body):
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def test_nobody_listens_on_a_free_port():
    port = free_port(20_000)
    assert not is_taken(port)
    assert find_neighbour(port) is None


def test_a_proxy_of_another_home_is_named():
    with listening(http(json.dumps(HEALTH))) as (port, asked):
        found = find_neighbour(port)
    assert asked[0].startswith(b"GET /health HTTP/1.1\r\n")
    assert b"\r\nHost: hivemind.internal\r\n" in asked[0]  # ours in every mode
    assert found.who == "the hivemind proxy of user ada, home /home/ada (process 77)"
    assert str(found).startswith(f"port {port} is taken by the hivemind proxy of user ada")
    assert "go through it by its address, or choose another port: `-p " in str(found)


def test_one_in_a_container_is_named_by_its_machine():
    with listening(http(json.dumps(HEALTH | {"machine": "3f9c01ab2e77"}))) as (port, _):
        assert "container or machine 3f9c01ab2e77 (process 77)" in find_neighbour(port).who


def test_a_proxy_that_takes_us_for_a_client_from_elsewhere_is_one_all_the_same():
    with listening(http(json.dumps({"status": "ok", "hivemind": True}))) as (port, _):
        assert "a hivemind proxy in a container or on another machine; go through it" in str(find_neighbour(port))


@each("answer", [None, b"SSH-2.0-x\r\n", http("<html>"), http('{"status": "ok"}'), http("[]"), b"\xff\xfe\r\n\r\n"])
def test_a_foreign_program_is_said_to_be_one_with_the_right_cure(answer, monkeypatch):
    monkeypatch.setattr(neighbour, "_PATIENCE_S", 0.5)
    with listening(answer) as (port, _):
        found = find_neighbour(port)
        cure = int(str(found).rpartition("`-p ")[2].rstrip("`"))
        assert not is_taken(cure)
    assert str(found).startswith(f"port {port} is taken by a program that is no proxy of hivemind; choose another")


def test_our_own_that_is_just_starting_is_no_stranger(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with listening() as (port, _):
        lock = supervise(port)
        assert find_stranger(port) is None
        os.close(lock)
        assert find_stranger(port) is not None
