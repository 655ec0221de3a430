"""The command line; what really runs is in tests/e2e."""

import json
import os
import subprocess
import sys
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner

from hivemind_addon.formats.wire.proxy_user import proxy_words
from hivemind_addon.proxy.api.report import ProxyView
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import execute
from hivemind_addon.tools.commands import run as runs
from hivemind_addon.tools.launch import agent_environment, background, claim, detached
from hivemind_addon.tools.launch.programs import load_programs
from tests.cases import each
from tests.tools.commands.slips import offenders


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """No proxy runs on it, and its folders are the test's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.proxy.system.folders.LONGEST_SOCKET_PATH", 1000)
    monkeypatch.setattr(background, "running", lambda _: None)
    ours = load_programs().ca_variables
    for name in [name for name in os.environ if name in ours or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def became(monkeypatch, tmp_path):
    """What `exec` would have become: command and environment."""
    seen = []
    proxy = ProxyView(pid=7, port=9090, listens=("127.0.0.1:9090",), confdir="", hosts=("api.anthropic.com",))
    monkeypatch.setattr(background, "find_or_start", lambda *_args, **_more: proxy)
    monkeypatch.setattr(agent_environment, "write_bundle", lambda _confdir, users: tmp_path / f"{len(list(users))}.pem")
    monkeypatch.setattr(execute, "become", lambda command, environment: seen.append((command, environment)))
    return seen


def run(*arguments, **environment):
    return CliRunner().invoke(main, arguments, env=environment)


def test_exec_takes_everything_behind_its_options_as_the_command(became):
    result = run("exec", "-p", "9090", "--agent", "a-1", "--priority", "low", "claude", "-p", "hi", "--agent", "x")
    assert result.exit_code == 0, result.output
    command, environment = became[0]
    assert command == ["claude", "-p", "hi", "--agent", "x"]
    assert environment["HTTPS_PROXY"] == "http://a-1:whole.prio-low@127.0.0.1:9090"
    assert environment["API_TIMEOUT_MS"] == "3600000"


def test_exec_hands_on_no_secret_of_the_proxys(became):
    secrets = ("HIVEMIND_CLUSTER_PASSWORD", "HIVEMIND_CLUSTER_SECRET", "HIVEMIND_ALERTS")
    result = run("exec", "-p", "9090", "claude", **dict.fromkeys(secrets, "hush"), ANTHROPIC_API_KEY="sk-own")
    assert result.exit_code == 0, result.output
    _, environment = became[0]
    assert "hush" not in environment.values()
    assert environment["ANTHROPIC_API_KEY"] == "sk-own"


@each(
    ("command", "environment", "words"),
    [
        (("cursor-agent", "-p", "x"), {}, ("calls: pass unscheduled", "nothing to schedule")),
        (("qwen", "x"), {"OPENAI_BASE_URL": "https://gateway.test/v1"}, ("OPENAI_BASE_URL names gateway.test",)),
        (("copilot", "-p", "x"), {}, ("api.githubcopilot.com", "write a profile")),
        (("claude", "-p", "x"), {}, ()),
        (("./fleet.sh",), {}, ()),
    ],
)
def test_exec_says_what_keeps_an_agent_from_being_scheduled(became, command, environment, words):
    result = run("exec", "-p", "9090", "--", *command, **environment)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert bool(result.stderr) is bool(words)
    assert all(word in result.stderr for word in words)
    assert became[-1][0] == list(command)


def test_an_agent_without_a_name_gets_one_of_its_own(became):
    run("exec", "--delivery", "stream", "--no-patience", "--", "/usr/bin/codex", "exec", "x")
    command, environment = became[0]
    assert command == ["/usr/bin/codex", "exec", "x"]
    assert environment["HTTPS_PROXY"].startswith(f"http://codex-{os.getpid()}:stream@")
    assert "API_TIMEOUT_MS" not in environment


def test_a_task_is_named_for_all_requests_of_an_agent(became):
    assert run("exec", "--agent", "a", "--task", "Nightly_7/x", "--", "true").exit_code == 0
    password = unquote(urlsplit(became[0][1]["HTTPS_PROXY"]).password)
    assert proxy_words(password).task == "Nightly_7/x"


@pytest.mark.parametrize("task", ["two words", "a.b", "a,b", "a+b", ""])
def test_a_task_that_would_not_arrive_whole_is_refused(became, task):
    result = run("exec", "--task", task, "--", "true")
    assert (result.exit_code, "would not arrive whole" in result.output, became) == (2, True, [])


def test_a_users_bundle_is_included_and_ours_is_not_again(became, tmp_path):
    ours = str(tmp_path / "hivemind_addon" / "ca-bundle-1.pem")
    run("exec", "--", "true", SSL_CERT_FILE="/company.pem", NODE_EXTRA_CA_CERTS=ours, CURL_CA_BUNDLE="/company.pem")
    assert became[0][1]["SSL_CERT_FILE"].endswith("/1.pem")


def test_what_cannot_be_is_one_line():
    slips = [
        (["exec"], 2, "Missing argument"),
        (["exec", "--prio", "low", "--", "true"], 2, "No such option '--prio'"),
        (["task", "submit", "--prio", "low", "--", "true"], 2, "No such option '--prio'"),
        (["setup", "env"], 1, "no proxy serves port 8080; start it with `hivemind run`"),
        (["status", "-p", "9090"], 1, "no proxy serves port 9090; start it with `hivemind run -p 9090`"),
        (["top", "--once"], 1, "no proxy serves port 8080; start it with `hivemind run`"),
        (["top", "--snapshot", "none.json"], 2, "File 'none.json' does not exist"),
        (["top", "--snapshot", __file__], 1, f"Error: {__file__}: this is no report"),
        (["run", "-p", "0"], 2, "0 is not in the range"),
        (["run", "--nonsense"], 1, "Error: no such option: --nonsense\n"),
    ]
    assert offenders(run, slips) == []


def test_a_proxy_that_cannot_be_gone_through_is_one_line():
    result = run("run", HTTPS_PROXY="socks5://corp:1080")
    assert result.exit_code == 1
    assert result.output.startswith("Error: HTTPS_PROXY: mitmproxy cannot go through")


def test_a_second_supervisor_is_told_apart():
    lock = claim.supervise(8080)
    try:
        assert run("run", "--while-used").exit_code == detached.ALREADY_THERE
        assert "serves port 8080 already" in run("run").output
    finally:
        os.close(lock)


def test_a_folder_that_cannot_be_used_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "hivemind").write_text("a file")
    result = run("status")
    assert result.exit_code == 1
    assert str(tmp_path / "hivemind") in result.output


def test_whoever_stops_reading_gets_no_complaint(tmp_path):
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hivemind_addon", "doctor", "--port", "1"]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, env=environment, text=True, timeout=120, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--capture", "/n/night.flow"], ("--set", "hivemind_capture=/n/night.flow")),
        (
            ["--capture", "/n/night.flow", "--no-content"],
            ("--set", "hivemind_capture=/n/night.flow", "--set", "hivemind_capture_content=false"),
        ),
    ],
)
def test_run_hands_on_what_is_to_be_recorded(monkeypatch, arguments, options):
    asked = []

    def refuse(**told):
        asked.append(told["options"])
        raise runs.NoMitmproxy("that is enough")

    monkeypatch.setattr(runs, "proxy_command", refuse)
    run("run", *arguments)
    assert asked == [options]


@pytest.fixture
def supervised(monkeypatch):
    """What `hivemind run` starts: its command, and the environment of that."""

    class Ended(Exception):
        pass

    started = []

    def supervise(command, *, environment, **_):
        started.append((command, environment))
        raise Ended

    monkeypatch.setattr(runs, "Supervisor", supervise)

    def start(*arguments):
        assert isinstance(run("run", *arguments).exception, Ended)
        return started.pop()

    return start


def test_run_hands_on_a_cluster_where_nobody_else_reads_it(monkeypatch, supervised):
    monkeypatch.setenv("HIVEMIND_CLUSTER_NAME", "team")
    command, environment = supervised("--cluster", "valkey://:open-sesame@cache.test")
    assert environment["HIVEMIND_CLUSTER"] == "valkey://:open-sesame@cache.test"
    assert environment["HIVEMIND_CLUSTER_NAME"] == "team"
    assert not any("sesame" in word for word in (*command.first, *command.again))


def test_a_proxy_inside_of_exec_is_in_no_cluster_by_inheritance(monkeypatch, supervised):
    """Its requests go through the outer one, which is a member: they would be admitted twice, and wait for themselves."""
    monkeypatch.setenv("HIVEMIND_CLUSTER", "valkey://cache.test")
    assert supervised("-p", "9191")[1]["HIVEMIND_CLUSTER"] == "valkey://cache.test"
    monkeypatch.setenv("HTTPS_PROXY", "http://company.test:3128")
    assert supervised("-p", "9192")[1]["HIVEMIND_CLUSTER"] == "valkey://cache.test"
    monkeypatch.setenv("HTTPS_PROXY", "http://agent:x@127.0.0.1:9180")
    monkeypatch.setenv("HIVEMIND_PORT", "9180")
    assert supervised("-p", "9193")[1]["HIVEMIND_CLUSTER"] == "off"
    assert supervised("-p", "9194", "--cluster", "valkey://cache.test")[1]["HIVEMIND_CLUSTER"] == "valkey://cache.test"


def test_how_to_record_without_what_is_a_slip():
    told = run("run", "--no-content")
    assert told.exit_code == 2
    assert "add --capture FILE" in told.output


def test_which_cluster_without_where_is_a_slip(monkeypatch):
    monkeypatch.delenv("HIVEMIND_CLUSTER", raising=False)
    told = run("run", "--cluster-name", "team")
    assert told.exit_code == 2
    assert "add --cluster URL" in told.output


def test_doctor_ends_with_a_verdict_and_programs_get_ids_and_cures():
    result = run("doctor", "-p", "1")
    assert result.exit_code == 1
    bad = [line for line in result.stdout.splitlines() if line.startswith("bad ")]
    last = result.stdout.splitlines()[-1]
    assert (
        last == f"verdict: {len(bad)} things in the way of an agent that starts here; first: start `hivemind run -p 1`"
    )
    rows = json.loads(run("doctor", "-p", "1", "--json").stdout)
    assert {"id", "verdict", "text", "cure"} == set(rows[0])
    (none,) = [row for row in rows if row["id"] == "proxy.none"]
    assert none["text"] == "proxy: nothing listens on port 1; start `hivemind run -p 1`"
    assert none["cure"] == "start `hivemind run -p 1`"
    assert all(row["cure"] for row in rows if row["verdict"] == "bad")


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ("my-agent", "my-agent that starts here and reads that base URL is scheduled"),
        ("crush", "crush that starts here and reads that base URL is scheduled"),
        ("claude", "claude that starts here is scheduled"),
        ("claude-code", "claude-code that starts here is scheduled"),
        ("npx @anthropic-ai/claude-code", "npx @anthropic-ai/claude-code that starts here is scheduled"),
        ("amp", "amp is not scheduled, wherever it starts"),
    ],
)
def test_doctors_verdict_on_any_agent(monkeypatch, agent, says):
    """As docs/start.md sets one up: by its base URL."""
    view = ProxyView(pid=1, port=18, listens=("127.0.0.1:18",), confdir="/nowhere", hosts=("api.anthropic.com",))
    monkeypatch.setattr(background, "running", lambda _: view)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    result = run("doctor", "-p", "18", "--agent", agent, ANTHROPIC_BASE_URL="http://127.0.0.1:18")
    assert result.stdout.splitlines()[-1] == f"verdict: {says}"
    assert result.exit_code == ("not scheduled" in says)


@pytest.mark.parametrize(
    ("words", "variables", "says"),
    [
        (("--cluster", "http://cache.test"), {}, "--cluster: 'http://cache.test' is no engine's URL; write valkey://"),
        ((), {"HIVEMIND_CLUSTER": "valkey://cache.test:x"}, "HIVEMIND_CLUSTER: 'valkey://cache.test:x' has no port"),
        (("--cluster", "valkey://cache.test", "--cluster-name", "a b"), {}, "--cluster-name: 'a b' is no name; take 1"),
    ],
)
def test_a_cluster_that_is_none_is_told_before_anything_is_started(monkeypatch, words, variables, says):
    for name in ("HIVEMIND_CLUSTER", "HIVEMIND_CLUSTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(runs, "Supervisor", None)
    told = run("run", *words)
    assert told.exit_code == 1
    assert f"Error: {says}" in told.output
