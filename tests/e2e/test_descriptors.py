"""More clients than there are files for: the proxy goes on, and does not spin."""

import os
import socket
import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.e2e.proxy import MITMDUMP, PATIENCE_S, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("descriptors")]

CLIENTS = 345


@pytest.fixture
def limited(tmp_path):
    """Makes a mitmdump that begins with a soft and a hard limit of open files."""

    def make(soft, hard):
        script = tmp_path / "mitmdump"
        script.write_text(f'#!/bin/sh\nulimit -Sn {soft} && ulimit -Hn {hard} && exec {MITMDUMP} "$@"\n')
        script.chmod(0o700)
        return running(tmp_path / "conf", executable=script)

    return make


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_served(client, port):
    connection = HTTPConnection("127.0.0.1", port)
    connection.sock = client
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return answer.status == 200 and bool(answer.read())
    except (OSError, HTTPException):
        return False


def is_healthy(port):
    with closing(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) as client:
        return is_served(client, port)


def crowd(stack, port):
    return [
        stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) for _ in range(CLIENTS)
    ]


def test_beyond_a_hard_limit_some_wait_and_some_are_refused_and_nothing_spins(limited):
    with limited(256, 256) as proxy:
        with ExitStack() as stack:
            clients = crowd(stack, proxy.port)
            served = next(number for number, client in enumerate(clients[:3]) if is_served(client, proxy.port))
            before, began = cpu_s(proxy.process.pid), time.monotonic()
            time.sleep(2)  # the machine's own time: a spin would show in it
            share = (cpu_s(proxy.process.pid) - before) / (time.monotonic() - began)
            assert share < 0.5
            assert is_served(clients[served], proxy.port)
            assert proxy.log.count("\n") < 5 * CLIENTS
            assert "out of system resource" not in proxy.log
            assert proxy.log.count("open files let") == 1
        deadline = time.monotonic() + PATIENCE_S
        while not is_healthy(proxy.port):  # it hears one by one that they have gone
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_soft_limit_is_raised_and_all_are_served(limited):
    with limited(256, 4096) as proxy, ExitStack() as stack:
        assert all(is_served(client, proxy.port) for client in crowd(stack, proxy.port))
        assert "open files let" not in proxy.log
