"""`hivemind exec`: an agent through the proxy, which is there for it and gone with it."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.proxy import MITMDUMP, PATIENCE_S, free_port
from tests.processes import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("exec")]


def proxy_ends(mine):
    mine.wait_for(lambda: mine.report() is None, "the end of the proxy")


def test_an_agent_gets_its_answer_and_nothing_is_left(mine):
    done = mine.run("exec", "--agent", "curl-1", "--", *mine.model_call())
    assert '"stop_reason":"end_turn"' in done.stdout, done
    assert done.stderr == ""
    proxy_ends(mine)
    assert "listening at" in (mine.state / f"proxy-{mine.port}.log").read_text()
    bundles = list(mine.state.glob("ca-bundle-*.pem"))
    assert len(bundles) == 1
    assert "PRIVATE KEY" not in bundles[0].read_text()


def test_the_exit_status_is_the_commands(served):
    for command, status in (
        (["sh", "-c", "exit 42"], 42),
        (["sh", "-c", "kill -TERM $$"], -15),
        (["/nonexistent"], 127),
        (["/etc/hosts"], 126),
    ):
        assert served.run("exec", "--", *command).returncode == status, command


def test_two_at_the_same_moment_share_one_proxy_that_ends_with_the_second(mine):
    go = mine.home / "go"
    script = f'echo "$HTTPS_PROXY"; while [ ! -e "{go}-$1" ]; do sleep 0.05; done'
    with (
        mine.started("exec", "--agent", "one", "--", "sh", "-c", script, "sh", "1") as one,
        mine.started("exec", "--agent", "two", "--", "sh", "-c", script, "sh", "2") as two,
    ):
        assert one.stdout.readline().startswith("http://one:whole@127.0.0.1:")
        assert two.stdout.readline().startswith("http://two:whole@127.0.0.1:")
        proxy = mine.report()["proxy"]
        Path(f"{go}-1").touch()
        assert one.wait(PATIENCE_S) == 0
        assert mine.run("exec", "--", "true").returncode == 0  # one more that comes and goes ends nothing
        assert mine.report()["proxy"] == proxy
        Path(f"{go}-2").touch()
        assert two.wait(PATIENCE_S) == 0
        proxy_ends(mine)
        mine.wait_for(lambda: not is_alive(proxy["pid"]), "the end of its process")


def test_one_that_comes_while_the_proxy_is_ending_gets_a_new_one(mine):
    for _ in range(3):
        done = mine.run("exec", "--", *mine.model_call())
        assert '"stop_reason":"end_turn"' in done.stdout, done


def test_a_proxy_that_dies_under_it_is_back_for_the_next_call(mine):
    go = mine.home / "go"
    # All errors: one that connects while the port is being closed is reset.
    patience = ("--retry", str(PATIENCE_S), "--retry-all-errors", "--retry-delay", "1")
    call = " ".join(f"'{word}'" for word in mine.model_call(*patience))
    script = f'echo ready; while [ ! -e "{go}" ]; do sleep 0.05; done; {call}'
    with mine.started("exec", "--", "sh", "-c", script) as agent:
        agent.stdout.readline()
        pid = mine.report()["proxy"]["pid"]
        os.kill(pid, signal.SIGKILL)
        go.touch()
        assert '"stop_reason":"end_turn"' in agent.stdout.read()
        assert agent.wait(PATIENCE_S) == 0
    proxy_ends(mine)


def test_signals_are_the_commands_own(mine):
    script = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7)); print('ready'); signal.pause()"
    with mine.started("exec", "--", sys.executable, "-u", "-c", script) as agent:
        assert agent.stdout.readline() == "ready\n"
        agent.send_signal(signal.SIGUSR1)
        assert agent.wait(PATIENCE_S) == 7
    proxy_ends(mine)


def test_one_that_is_killed_leaves_no_proxy_behind(mine):
    with mine.started("exec", "--", "sh", "-c", "echo ready; exec sleep 600") as agent:
        assert agent.stdout.readline() == "ready\n"
        agent.kill()
        agent.wait(PATIENCE_S)
        proxy_ends(mine)


def test_a_proxy_of_the_users_own_is_used_and_stays(served):
    proxy = served.report()["proxy"]
    assert served.run("exec", "--", "true").returncode == 0
    assert served.run("exec", "--", "true").returncode == 0  # it is there for the next one
    assert served.report()["proxy"] == proxy


@contextmanager
def company_proxy(mine, anthropic):
    """A bare mitmdump that demands a password and tunnels everything to the provider."""
    port, log, script = free_port(), mine.home / "company.log", mine.home / "company.py"
    script.write_text(f"def server_connect(data):\n    data.server.address = ('127.0.0.1', {anthropic.port})\n")
    settings = [f"confdir={mine.home}/company", "connection_strategy=lazy", "proxyauth=me:sec%ret"]
    command = [
        MITMDUMP,
        "--listen-host",
        "127.0.0.1",
        "--listen-port",
        str(port),
        "--ignore-hosts",
        ".*",
        "-s",
        str(script),
    ]
    command += [argument for one in settings for argument in ("--set", one)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=mine.environment)
    try:
        mine.wait_for(lambda: "listening at" in log.read_text(), "the start of the company's proxy")
        yield port, log
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_a_companys_proxy_is_gone_through_with_its_credentials(mine, anthropic):
    # No redirect of ours: the way to the provider is the company's.
    mine.configure(ssl_verify_upstream_trusted_ca=str(mine.home / "upstream.pem"))
    with company_proxy(mine, anthropic) as (port, log):
        url = f"http://me:sec%25ret@127.0.0.1:{port}"
        done = mine.run("exec", "--", *mine.model_call(), HTTPS_PROXY=url, NO_PROXY="api.anthropic.com")
        assert '"stop_reason":"end_turn"' in done.stdout, (done, log.read_text())
        assert f"server connect 127.0.0.1:{anthropic.port}" in log.read_text()


def test_a_port_that_is_something_elses_is_one_clear_failure(mine):
    with socket.create_server(("127.0.0.1", mine.port)):
        done = mine.run("exec", "--", "true")
    assert done.returncode == 1
    assert f"port {mine.port} is taken by a program that is no proxy of hivemind" in done.stderr
    assert f"-p {mine.port + 1}" in done.stderr
