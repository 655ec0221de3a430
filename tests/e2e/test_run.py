"""`hivemind run`, `exec` and `doctor`: a proxy that is there for agents, comes back, and leaves nothing behind."""

import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from hivemind_addon.tools.launch.proxy_command import OLLAMA_PORT
from tests.e2e.machine import machine
from tests.e2e.proxy import MITMDUMP, PATIENCE_S, free_port
from tests.processes import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("run")]

ANSWERED = '"stop_reason":"end_turn"'


def listens(port):
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def delivered(mine):
    return mine.report()["snapshot"]["counters"]["delivered"]


def killed(mine):
    """The proxy is killed; the one that comes after it, and the one before."""
    before = mine.report()["proxy"]
    os.kill(before["pid"], signal.SIGKILL)

    def another():
        report = mine.report()
        return report and report["proxy"]["pid"] != before["pid"] and report["proxy"]

    return mine.wait_for(another, "the return"), before


def proxy_ends(mine):
    mine.wait_for(lambda: mine.report() is None, "the end of the proxy")


# hivemind run ------------------------------------------------------------------------------------------------------------


def test_it_says_how_to_get_behind_it_a_dead_proxy_is_back_and_its_end_leaves_nothing(mine):
    with mine.started("run") as run:
        try_it = f"listening at 127.0.0.1:{mine.port}; try `hivemind exec -p {mine.port} -- claude`\n"
        assert run.stdout.readline().endswith(f"hivemind: {try_it}")
        mine.wait_for(mine.report, "the start")
        assert mine.run("exec", "--agent", "curl-1", "--", *mine.model_call()).returncode == 0
        text = mine.run("status", COLUMNS="120").stdout
        assert re.search(r"1 request · 1 delivered", " ".join(text.split())), text
        assert "api.anthropic.com" in text
        assert loop_of(mine) == ("uvloop" if find_spec("uvloop") else "asyncio")
        second = mine.run("run")
        refused = f"Error: `hivemind run` serves port {mine.port} already; use that, or choose another with -p\n"
        assert (second.returncode, second.stderr) == (1, refused)

        after, before = killed(mine)
        assert after["listens"] == before["listens"] == [f"127.0.0.1:{mine.port}"]
        done = mine.run("exec", "--", *mine.model_call())
        assert ANSWERED in done.stdout, done

        run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE_S) == 0
        assert not is_alive(after["pid"])
        assert not listens(mine.port)
        lines = run.stdout.read().splitlines(keepends=True)
        assert f"the proxy ended (SIGKILL); starting it again on port {mine.port}" in lines[0]
        assert [line for line in lines[1:] if not line.endswith(try_it)] == []  # two calls went, and are no news
    assert sorted(path.suffix for path in (mine.home / "hivemind").iterdir()) == [".lock", ".users"]
    nobody = mine.run("status")
    told = f"Error: no proxy serves port {mine.port}; start it with `hivemind run -p {mine.port}`\n"
    assert (nobody.returncode, nobody.stderr) == (1, told)


def test_in_the_background_it_says_its_addresses_is_read_and_ended_and_leaves_nothing(mine):
    started = mine.run("run", "--detach", "--set", "hivemind_keep=off")
    assert started.returncode == 0, started
    proxy = mine.report()["proxy"]
    try:
        told = dict(line.split(maxsplit=1) for line in started.stdout.splitlines())
        assert told["serves"] == f"127.0.0.1:{mine.port}"
        assert httpx.get(told["page"], trust_env=False).status_code == 200
        again = mine.run("run", "--detach")
        assert (again.returncode, "serves port" in again.stderr) == (1, True)
        assert ANSWERED in mine.run("exec", "--", *mine.model_call()).stdout
        assert mine.report()["proxy"]["pid"] == proxy["pid"], "its first user's end is not its own"
        with mine.started("logs", "-f", "-n", "1") as follower:
            assert f"listening at 127.0.0.1:{mine.port}" in follower.stdout.readline()
            after, _ = killed(mine)
            assert "the proxy ended (SIGKILL); starting it again" in follower.stdout.readline()
            follower.send_signal(signal.SIGINT)
            assert follower.wait(PATIENCE_S) == 0
    finally:
        ended = mine.run("stop")
    assert ended.returncode == 0
    assert f"stopped the proxy on 127.0.0.1:{mine.port} (process {after['pid']}); nothing was in flight" in ended.stdout
    assert not is_alive(after["pid"])
    assert not listens(mine.port)
    assert "listening at" in mine.run("logs").stdout
    nothing = mine.run("stop")
    assert (nothing.returncode, "no proxy serves port" in nothing.stderr) == (1, True)


def test_files_and_the_environment_say_options_where_the_command_line_does_not_and_a_mistake_names_the_file(mine):
    file = mine.home / "hivemind.yaml"
    file.write_text("max_concurrency: 4\nkeep: off\nreverse_hosts: [a.test]\nlog: night.jsonl\n")
    with mine.started(
        "run", "--loop", "asyncio", "--max-concurrency", "7", HIVEMIND_CONFIG=str(file), HIVEMIND_JOURNAL_KEEP="3 days"
    ) as run:
        mine.wait_for(mine.report, "the start")
        said = {one["name"]: one["value"] for one in json.loads(mine.run("config", "--json").stdout)}
        assert loop_of(mine) == "asyncio"
        assert said["hivemind_max_concurrency"] == "7"
        assert said["hivemind_keep"] == "off"
        assert said["hivemind_reverse_hosts"] == ["a.test"]
        assert said["hivemind_log"] == str(mine.home / "night.jsonl")
        assert said["hivemind_journal_keep"] == "3 days"
        run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE_S) == 0
    file.write_text("max_concurrency: many\n")
    done = mine.run("run", HIVEMIND_CONFIG=str(file))
    assert done.returncode == 1
    assert f"hivemind: {file}: max_concurrency: 'many' is no number from 1 on; " in done.stdout + done.stderr


def loop_of(mine):
    maps = Path(f"/proc/{mine.report()['proxy']['pid']}/maps").read_text()
    return "uvloop" if "uvloop" in maps else "asyncio"


def test_mitmweb_runs_under_it_too_and_ctrl_c_ends_it(mine):
    with mine.started("run", "--web", "--no-web-open-browser", "--set", f"web_port={free_port()}") as run:
        proxy = mine.wait_for(mine.report, "the start")["proxy"]
        assert b"mitmweb" in Path(f"/proc/{proxy['pid']}/cmdline").read_bytes()
        told = [run.stdout.readline(), run.stdout.readline()]
        page = re.fullmatch(r".*hivemind: mitmweb is at (http://127\.0\.0\.1:\d+/\?token=\w+)\n", told[1])
        assert page, told
        assert httpx.get(page[1], trust_env=False).status_code == 200  # it lets us in
        run.send_signal(signal.SIGINT)
        assert run.wait(PATIENCE_S) == 0
        assert not is_alive(proxy["pid"])


def test_a_bad_option_is_shown_and_not_tried_again_and_nothing_is_announced(mine):
    done = mine.run("run", "--set", "hivemind_profile=x")
    assert done.returncode == 1
    assert "hivemind_profile: no such option; did you mean hivemind_profiles?" in done.stdout + done.stderr
    assert "again" not in done.stdout + done.stderr
    assert "listening" not in done.stdout + done.stderr


def test_a_foreign_program_on_the_port_is_all_that_is_told(mine):
    with socket.create_server(("127.0.0.1", mine.port)):
        taken = mine.run("run", HTTPS_PROXY="http://127.0.0.1:9")
        done = mine.run("exec", "--", "true")
    assert (taken.returncode, taken.stdout) == (1, "")
    told = f"Error: port {mine.port} is taken by a program that is no proxy of hivemind"
    assert re.fullmatch(rf"{told}; choose another port: `-p \d+`\n", taken.stderr)
    assert done.returncode == 1
    assert told.removeprefix("Error: ") in done.stderr
    assert f"-p {mine.port + 1}" in done.stderr


def test_a_proxy_of_another_home_is_named_when_it_is_met(served, anthropic, authority):
    with machine(anthropic, authority) as other:
        other.port = served.port
        for command in (["exec", "--", "true"], ["status"]):
            met = other.run(*command)
            assert (met.returncode, met.stdout) == (1, "")
            who = f"user {getpass.getuser()}, home {served.home} (process "
            assert f"taken by the hivemind proxy of {who}" in met.stderr


def test_bounds_an_upstream_and_a_port_for_ollama_are_options_of_its_own(mine, anthropic, authority):
    bounds = ("--max-concurrency", "2", "--total-budget", "1M", "--agent-budget", "$2")
    journal = mine.home / "journal.db"
    with mine.started(
        "run", *bounds, "--journal", str(journal), "--upstream", "https://api.anthropic.com/", "--ollama"
    ) as run:
        run.stdout.readline()
        line = run.stdout.readline()
        assert line.endswith(f"listening at 127.0.0.1:{OLLAMA_PORT} for http://127.0.0.1:11434\n")
        proxy = mine.wait_for(mine.report, "the start")["proxy"]
        assert proxy["listens"] == [f"127.0.0.1:{mine.port}", f"127.0.0.1:{OLLAMA_PORT}"]
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
            url = f"http://127.0.0.1:{OLLAMA_PORT}/api/tags"
            assert client.get(url, headers={"host": f"evil.test:{OLLAMA_PORT}"}).status_code == 421
        with machine(anthropic, authority) as other:
            second = other.run("run", "--ollama")
        assert (second.returncode, second.stdout) == (1, "")
        assert f"port {OLLAMA_PORT}, which --ollama needs, is taken by the hivemind proxy of user " in second.stderr
        assert f"home {mine.home} (process {proxy['pid']}); use that one's, or leave --ollama out\n" in second.stderr

        assert ANSWERED in by_base_url(mine, "127.0.0.1").stdout
        snapshot = mine.report()["snapshot"]
    assert [(pool["key"]["host"], pool["limit"]) for pool in snapshot["pools"]] == [("api.anthropic.com", 2)]
    assert journal.is_file()
    budgets = [one["budget"] for one in snapshot["budgets"]]
    assert {(one["scope"], one["tokens"], one["micro_usd"]) for one in budgets} == {
        ("everyone", 1_000_000, None),
        ("agent", None, 2_000_000),
    }


def by_base_url(mine, host):
    """A call of a client whose base URL is the proxy's port."""
    words = [word.replace("https://api.anthropic.com", f"http://{host}:{mine.port}") for word in mine.model_call()]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_base_url_that_names_the_port_leads_to_the_provider_of_the_path(served):
    before = delivered(served)
    done = by_base_url(served, "localhost")
    assert ANSWERED in done.stdout, done
    assert delivered(served) == before + 1


def test_env_prints_what_a_shell_can_read(served):
    printed = served.run("setup", "env", "--agent", "it's me", "--priority", "low").stdout
    script = printed + 'printf "%s" "$https_proxy"; ' + " ".join(f"'{word}'" for word in served.model_call())
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=served.environment, timeout=PATIENCE_S, check=False
    )
    assert f"http://it%27s%20me:prio-low@127.0.0.1:{served.port}" in done.stdout
    assert ANSWERED in done.stdout, done


# hivemind exec -----------------------------------------------------------------------------------------------------------


def test_an_agent_gets_its_answer_also_while_the_proxy_of_one_before_is_ending_and_nothing_is_left(mine):
    for _ in range(3):
        done = mine.run("exec", "--agent", "curl-1", "--", *mine.model_call())
        assert ANSWERED in done.stdout, done
        assert done.stderr == ""
    proxy_ends(mine)
    assert "listening at" in (mine.state / f"proxy-{mine.port}.log").read_text()
    (bundle,) = mine.state.glob("ca-bundle-*.pem")
    assert "PRIVATE KEY" not in bundle.read_text()


def test_two_at_the_same_moment_share_one_proxy_that_comes_back_and_ends_with_the_last(mine):
    go = mine.home / "go"
    # All errors: one that connects while the port is being closed is reset.
    patience = ("--retry", str(PATIENCE_S), "--retry-all-errors", "--retry-delay", "1")
    call = " ".join(f"'{word}'" for word in mine.model_call(*patience))
    script = f'echo "$HTTPS_PROXY"; while [ ! -e "{go}" ]; do sleep 0.05; done; {call}'
    with (
        mine.started("exec", "--agent", "one", "--", "sh", "-c", script) as one,
        mine.started("exec", "--agent", "two", "--", "sh", "-c", "echo $HTTPS_PROXY; exec sleep 600") as two,
    ):
        assert one.stdout.readline().startswith("http://one:whole@127.0.0.1:")
        assert two.stdout.readline().startswith("http://two:whole@127.0.0.1:")
        os.kill(mine.report()["proxy"]["pid"], signal.SIGKILL)
        go.touch()
        assert ANSWERED in one.stdout.read()
        assert one.wait(PATIENCE_S) == 0
        proxy = mine.report()["proxy"]
        assert mine.run("exec", "--", "true").returncode == 0  # one more that comes and goes ends nothing
        assert mine.report()["proxy"] == proxy
        two.kill()
        two.wait(PATIENCE_S)
        proxy_ends(mine)
        mine.wait_for(lambda: not is_alive(proxy["pid"]), "the end of its process")


def test_exit_status_and_signals_are_the_commands_own_and_a_proxy_of_the_users_stays(served):
    proxy = served.report()["proxy"]
    for command, status in ((["sh", "-c", "exit 42"], 42), (["sh", "-c", "kill -TERM $$"], -15), (["/none"], 127)):
        assert served.run("exec", "--", *command).returncode == status, command
    script = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7)); print('ready'); signal.pause()"
    with served.started("exec", "--", sys.executable, "-u", "-c", script) as agent:
        assert agent.stdout.readline() == "ready\n"
        agent.send_signal(signal.SIGUSR1)
        assert agent.wait(PATIENCE_S) == 7
    assert served.report()["proxy"] == proxy


@contextmanager
def company_proxy(mine, anthropic):
    """A bare mitmdump that demands a password and tunnels everything to the provider."""
    port, log, script = free_port(), mine.home / "company.log", mine.home / "company.py"
    script.write_text(f"def server_connect(data):\n    data.server.address = ('127.0.0.1', {anthropic.port})\n")
    settings = [f"confdir={mine.home}/company", "connection_strategy=lazy", "proxyauth=me:sec%ret"]
    command = [MITMDUMP, "--listen-host", "127.0.0.1", "--listen-port", str(port), "--ignore-hosts", ".*", "-s", script]
    command += [argument for one in settings for argument in ("--set", one)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=mine.environment)
    try:
        mine.wait_for(lambda: "listening at" in log.read_text(), "the start of the company's proxy")
        yield port, log
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_a_companys_proxy_is_gone_through_with_its_credentials_which_nobody_is_told(mine, anthropic):
    # No redirect of ours: the way to the provider is the company's.
    mine.configure(ssl_verify_upstream_trusted_ca=str(mine.home / "upstream.pem"))
    with company_proxy(mine, anthropic) as (port, log):
        url = f"http://me:sec%25ret@127.0.0.1:{port}"
        done = mine.run("exec", "--", *mine.model_call(), HTTPS_PROXY=url, NO_PROXY="api.anthropic.com")
        assert ANSWERED in done.stdout, (done, log.read_text())
        assert f"server connect 127.0.0.1:{anthropic.port}" in log.read_text()
    own_log = (mine.state / f"proxy-{mine.port}.log").read_text()
    assert f"going through http://127.0.0.1:{port}, as the environment says" in own_log
    assert "sec%" not in own_log + done.stderr


# hivemind doctor ---------------------------------------------------------------------------------------------------------


def test_doctor_finds_a_bundle_without_the_ca_by_the_handshake_and_the_proxy_says_the_cure_once(mine):
    upstream = mine.home / "upstream.pem"
    curl = f'curl -sS --cacert "{upstream}" https://api.anthropic.com/'
    script = f'"$@"; echo "status $?"; NODE_EXTRA_CA_CERTS="{upstream}" "$@"; {curl}; {curl}; true'
    done = mine.run("exec", "--agent", "lost-1", "--", "sh", "-c", script, "sh", *mine.hivemind("doctor"))
    well, _, ill = done.stdout.partition("status 0\n")
    assert "trusts the proxy for api.anthropic.com" in well
    assert "\nbad" not in well
    (bad,) = [line for line in ill.splitlines() if line.startswith("bad")]
    assert "NODE_EXTRA_CA_CERTS" in bad
    assert "hivemind exec" in bad
    log = mine.state / f"proxy-{mine.port}.log"
    says = [
        "Client TLS handshake failed. The client does not trust",
        "hivemind: lost-1: it does not trust the proxy's certificate for api.anthropic.com",
    ]
    # A client is gone before the proxy has read why: curl, twice.
    mine.wait_for(lambda: log.read_text().count(says[0]) == 2, "the proxy's hearing of two refusals")
    mine.wait_for(lambda: all(log.read_text().count(one) for one in says), "the cures")
    assert [log.read_text().count(one) for one in says] == [2, 1]
    assert "hivemind-doctor" not in log.read_text(), "its own probe is no client that distrusts the proxy"
