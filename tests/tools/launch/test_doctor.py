"""Each thing that keeps an agent from being scheduled, and that its line names the cure."""

import ast
import socket
import ssl
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
import trustme
from msgspec.structs import replace

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.proxy.api.control import UnreadableReport
from hivemind_addon.proxy.api.report import ProxyView
from hivemind_addon.proxy.api.trust import CERTIFICATE, KEY
from hivemind_addon.tools.launch import alert, doctor, hindrance
from hivemind_addon.tools.launch.doctor import Handshake, Severity, examine, shake_hands
from hivemind_addon.tools.launch.neighbour import PortHolder
from hivemind_addon.tools.launch.programs import load_programs
from tests.cases import each

PORT = 8080
URL = f"http://agent-1:x@127.0.0.1:{PORT}"


@pytest.fixture
def sick(tmp_path, monkeypatch, clock):
    """Examine a machine on which all is well but what the test changes; gives the lines that are not good."""
    confdir = tmp_path / "mitmproxy"
    confdir.mkdir()
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(confdir / CERTIFICATE))
    (confdir / KEY).write_bytes(ca.private_key_pem.bytes())
    proxy = ProxyView(
        pid=7,
        port=PORT,
        listens=(f"127.0.0.1:{PORT}", "127.0.0.1:11435"),
        confdir=str(confdir),
        hosts=("*.azure.test", "api.anthropic.com", "localhost:9"),
    )
    monkeypatch.setattr(doctor.background, "running", lambda _: proxy)
    monkeypatch.setattr(doctor, "shake_hands", lambda *_: Handshake(clock.wall() + 3))
    monkeypatch.setattr(doctor.Tokenizer, "load", lambda _: None)  # the real one takes a third of a second
    monkeypatch.setattr(doctor.shutil, "which", lambda *_args, **_more: None)

    def run(program=None, *, all_of_it=False, unknown="", **changes):
        environment = {"HTTPS_PROXY": URL, "SSL_CERT_FILE": str(confdir / CERTIFICATE)} | changes
        environment = {name: value for name, value in environment.items() if value is not None}
        table = load_programs()
        chosen = table.programs[program] if program else None
        found = list(examine(environment, port=PORT, program=chosen, table=table, clock=clock, unknown=unknown))
        assert all("\n" not in finding.text for finding in found)
        return [finding for finding in found if all_of_it or finding.verdict is not Severity.GOOD]

    run.confdir = confdir
    return run


def assert_one(findings, *words, verdict=Severity.BAD):
    assert [finding.verdict for finding in findings] == [verdict], findings
    for word in words:
        assert word in findings[0].text


def test_a_healthy_machine_has_nothing_to_say(sick):
    assert sick() == []
    assert len(sick(all_of_it=True)) >= 8


def test_a_limit_of_open_files_that_keeps_agents_waiting(sick, monkeypatch):
    few = replace(doctor.background.running(PORT), open_files=256)
    monkeypatch.setattr(doctor.background, "running", lambda _: few)
    assert_one(sick(), "open files", "256", "ulimit -Hn")


def test_no_proxy(sick, monkeypatch):
    monkeypatch.setattr(doctor.background, "running", lambda _: None)
    monkeypatch.setattr(doctor, "_CONFDIR", sick.confdir)
    monkeypatch.setattr(doctor, "find_stranger", lambda _: None)
    assert_one(sick(), f"nothing listens on port {PORT}", "hivemind run")
    monkeypatch.setattr(doctor, "find_stranger", lambda port: PortHolder(port, "another program", is_proxy=False))
    assert_one(sick(), "taken by another program", "-p ")


def test_a_control_socket_of_another_version(sick, monkeypatch):
    def running(_):
        raise UnreadableReport("/run/8080.sock: the proxy speaks version 9; restart the older")

    monkeypatch.setattr(doctor.background, "running", running)
    monkeypatch.setattr(doctor, "_CONFDIR", sick.confdir)
    assert_one(sick(), "version 9")


@each(
    ("changes", "words"),
    [
        ({"HTTPS_PROXY": None}, ("HTTPS_PROXY is not set", "hivemind exec")),
        ({"HTTPS_PROXY": "http://u:secret@corp:3128"}, ("leads to corp:3128", "hivemind exec")),
        ({"HTTPS_PROXY": "http://127.0.0.1:9090"}, ("127.0.0.1:9090",)),
        ({"HTTPS_PROXY": "127.0.0.1:8080"}, ("does not begin with http://",)),
        ({"ALL_PROXY": "socks5://u:secret@x:1"}, ("ALL_PROXY", "does not begin with http://")),
        ({"NO_PROXY": "x,.anthropic.com"}, (".anthropic.com", "take it out")),
        ({"no_proxy": "*"}, ("*", "take it out")),
        ({"ANTHROPIC_BASE_URL": "http://localhost:9000"}, ("ANTHROPIC_BASE_URL", "localhost:9000", "reverse:")),
        ({"OPENAI_BASE_URL": "https://gateway.test/v1"}, ("gateway.test", "write a profile")),
        ({"SSL_CERT_FILE": None}, ("CA variable is not set", "hivemind exec")),
        ({"SSL_CERT_FILE": "/nonexistent.pem"}, ("/nonexistent.pem", "unset it")),
    ],
)
def test_what_the_environment_does_wrong(sick, changes, words):
    findings = sick(**changes)
    assert_one(findings, *words)
    assert "secret" not in findings[0].text


@each(
    "changes",
    [
        {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{PORT}"},
        {"OLLAMA_HOST": "127.0.0.1:11435"},
        {"ANTHROPIC_BASE_URL": "https://api.anthropic.com"},
        {"NO_PROXY": "localhost,example.com"},
    ],
)
def test_what_looks_like_a_way_around_and_is_none(sick, changes):
    assert sick(**changes) == []


NO_PROXY_SET = {"HTTPS_PROXY": None, "SSL_CERT_FILE": None}
HERE = f"http://127.0.0.1:{PORT}"


@each(
    ("program", "changes"),
    [
        (None, {"ANTHROPIC_BASE_URL": HERE}),
        (None, {"OPENAI_BASE_URL": f"http://localhost:{PORT}/v1"}),
        ("claude", {"ANTHROPIC_BASE_URL": HERE}),
        ("opencode", {"ANTHROPIC_BASE_URL": f"{HERE}/v1"}),
        ("aider", {"OPENAI_API_BASE": f"{HERE}/v1", "NO_PROXY": "*.anthropic.com"}),
        ("grok", {"OPENAI_BASE_URL": f"{HERE}/v1"}),
        ("claude", {"ANTHROPIC_BASE_URL": HERE, "HTTPS_PROXY": "http://corp:3128"}),
        ("claude", {"ANTHROPIC_BASE_URL": HERE, "HTTP_PROXY": "http://corp:3128", "NO_PROXY": "a,127.0.0.1"}),
    ],
)
def test_an_agent_whose_base_url_leads_to_the_proxy_needs_nothing_else(sick, program, changes):
    assert sick(program, **NO_PROXY_SET | changes) == []
    found = sick(program, all_of_it=True, **NO_PROXY_SET | changes)
    assert found[-1].id == "way.base-url"
    assert next(name for name, value in changes.items() if ":8080" in value) in found[-1].text


def test_a_base_url_that_leads_to_the_proxy_before_it_is_started(sick, monkeypatch):
    monkeypatch.setattr(doctor.background, "running", lambda _: None)
    monkeypatch.setattr(doctor, "find_stranger", lambda _: None)
    assert_one(sick(**NO_PROXY_SET, ANTHROPIC_BASE_URL=HERE), "nothing listens", "hivemind run")


@each(
    ("program", "changes", "id_", "words"),
    [
        ("qwen", {"ANTHROPIC_BASE_URL": HERE}, "way.unset", "hivemind exec"),
        ("claude", {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9000"}, "base-url.local", "reverse:"),
        ("claude", {"ANTHROPIC_BASE_URL": HERE, "http_proxy": "http://corp:1"}, "way.detour", "NO_PROXY"),
        ("claude", {"ANTHROPIC_BASE_URL": HERE, "HTTP_PROXY": URL, "NO_PROXY": "localhost"}, "way.detour", "NO_PROXY"),
    ],
)
def test_a_base_url_that_does_not_lead_there(sick, program, changes, id_, words):
    found = {one.id: one for one in sick(program, **NO_PROXY_SET | changes)}
    assert words in found[id_].cure
    assert "way.base-url" not in found


@each(
    ("program", "file", "text"),
    [
        ("claude", ".claude/settings.json", '{"env": {"HTTPS_PROXY": "%s", "NODE_EXTRA_CA_CERTS": "%s"}}'),
        ("codex", ".codex/.env", "https_proxy=%s\nSSL_CERT_FILE=%s\n"),
        ("aider", ".env", "HTTPS_PROXY=%s\nexport SSL_CERT_FILE='%s'\n"),
    ],
)
def test_an_agent_that_its_own_file_puts_behind_the_proxy(sick, monkeypatch, tmp_path, program, file, text):
    """As `hivemind setup --write` does."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "mitmproxy")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text % (URL, sick.confdir / CERTIFICATE))
    found = sick(program, all_of_it=True, **NO_PROXY_SET)
    assert {one.id for one in found if one.verdict is Severity.BAD} <= {"calls.unclaimed"}
    assert any(one.id == "variables" and str(tmp_path / file) in one.text for one in found)
    (tmp_path / file).write_text("{nonsense")
    assert {one.id for one in sick(program, **NO_PROXY_SET)} >= {"way.unset", "ca.unset"}
    (tmp_path / file).unlink()


def test_an_agent_that_nobody_has_heard_of_is_checked_as_any(sick):
    assert_one(sick(unknown="my-agent"), "nothing is known of my-agent", verdict=Severity.NOTE)
    ids = [one.id for one in sick(unknown="my-agent", **NO_PROXY_SET)]
    assert ids == ["agent.unknown", "way.unset", "ca.unset"]


def test_an_agent_of_a_vendors_own_is_not_examined_further(sick):
    found = sick("amp", **NO_PROXY_SET)
    assert_one(found, "nothing to schedule", verdict=Severity.NOTE)


def test_variables_of_programs_that_call_no_model_do_not_matter(sick):
    assert sick(GIT_SSL_CAINFO="/nonexistent.pem") == []
    assert_one(sick(SSL_CERT_FILE=None, GIT_SSL_CAINFO="/etc/ssl/x.pem"), "CA variable is not set")


def test_the_key_instead_of_the_certificate(sick):
    assert_one(sick(SSL_CERT_FILE=str(sick.confdir / KEY)), "private key", CERTIFICATE)


def test_a_ca_that_is_not_there(sick):
    (sick.confdir / CERTIFICATE).unlink()
    assert any("is not there" in finding.text and "hivemind run" in finding.text for finding in sick())


def test_a_bundle_that_the_handshake_refuses(sick, monkeypatch):
    monkeypatch.setattr(doctor, "shake_hands", lambda *_: "[SSL: CERTIFICATE_VERIFY_FAILED] unable to get issuer")
    findings = [one for one in sick() if one.verdict is Severity.BAD]
    assert_one(findings, "SSL_CERT_FILE", "does not trust", "hivemind exec")
    monkeypatch.setattr(doctor, "shake_hands", lambda *_: "connection reset")
    assert_one([one for one in sick() if one.verdict is Severity.BAD], "connection reset")


def test_an_agent_that_reads_another_variable(sick):
    assert_one(sick("claude"), "NODE_EXTRA_CA_CERTS is not set")
    assert sick("crush") == []


@each(("date_in_s", "words"), [(-500, "500 s ahead of"), (500, "500 s behind"), (None, "did not answer")])
def test_a_clock_that_is_off_and_one_that_cannot_be_compared(sick, monkeypatch, clock, date_in_s, words):
    date = None if date_in_s is None else clock.wall() + date_in_s
    monkeypatch.setattr(doctor, "shake_hands", lambda *_: Handshake(date))
    assert_one(sick(), words, verdict=Severity.NOTE if date is None else Severity.BAD)


@each(
    ("node", "changes", "words"),
    [
        ("v20.20.2", {}, "install Node 22.21"),
        ("v22.21.0", {}, "NODE_USE_ENV_PROXY=1"),
        ("v24.1.0", {"NODE_USE_ENV_PROXY": "1"}, None),
    ],
)
def test_nodes_fetch(sick, monkeypatch, tmp_path, node, changes, words):
    program = tmp_path / "node"
    program.write_text(f"#!/bin/sh\necho {node}\n")
    program.chmod(0o755)
    monkeypatch.setattr(doctor.shutil, "which", lambda *_args, **_more: str(program))
    if words:
        assert_one(sick(**changes), words, verdict=Severity.NOTE)
        of_grok = sick("grok", NODE_EXTRA_CA_CERTS=str(sick.confdir / CERTIFICATE), **changes)
        assert_one([one for one in of_grok if one.id.startswith("node")], words)
    else:
        assert sick(**changes) == []
    assert sick("crush", **changes) == []


def test_codexs_own_configuration(sick, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(
        '[model_providers.mine]\nbase_url = "https://mine.test/v1"\nsupports_websockets = true\n'
    )
    assert_one(sick("codex"), "config.toml", "mine.test", "write a profile")


def test_damaged_data_and_old_programs(sick, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "version", lambda _: "11.1.3")
    monkeypatch.setattr(doctor.Tokenizer, "load", lambda _: "the vocabulary's checksum is wrong")
    found = sick()
    assert ["11.1.3 is too old" in found[0].text, "checksum" in found[1].text] == [True, True]

    def load_profiles(_):
        raise DocumentError(tmp_path / "x.yaml", "hosts", "no list", "write one")

    monkeypatch.setattr(doctor, "load_profiles", load_profiles)
    assert "x.yaml: hosts: no list; write one" in sick()[2].text


def test_old_prices(sick, clock):
    clock.advance(10**10)
    assert_one(sick(), "days old)", "pip install -U genai-prices", verdict=Severity.NOTE)


def test_calls_that_passed_by_are_told(sick, monkeypatch):
    proxy = replace(doctor.background.running(PORT), unscheduled=("generativelanguage.googleapis.com",))
    monkeypatch.setattr(doctor.background, "running", lambda _: proxy)
    assert_one(sick(), "calls to generativelanguage.googleapis.com", "write a profile with hosts:")


def test_who_shares_limits_is_no_trouble(sick, monkeypatch):
    words = "limits of its own: refused 3 times while 6 calls of other models were admitted"
    proxy = replace(doctor.background.running(PORT), sharing=(("api.openai.com/key/gpt-5", words),))
    monkeypatch.setattr(doctor.background, "running", lambda _: proxy)
    assert not sick()
    assert f"pools: api.openai.com/key/gpt-5: {words}" in [finding.text for finding in sick(all_of_it=True)]


def test_a_websocket_that_was_refused_is_no_trouble(sick, monkeypatch):
    proxy = replace(doctor.background.running(PORT), refused_sockets=(("codex-1", "api.openai.com"),))
    monkeypatch.setattr(doctor.background, "running", lambda _: proxy)
    assert not sick()
    told = next(finding.text for finding in sick(all_of_it=True) if finding.text.startswith("WebSocket"))
    assert "codex-1 to api.openai.com was refused" in told


@each(
    ("seen", "verdict", "words"),
    [
        ({"vendors": ("api2.cursor.sh",)}, Severity.NOTE, ("api2.cursor.sh are tunnelled", "nothing to schedule")),
        ({"distrusting": (("qwen-1", "api.x.ai"),)}, Severity.BAD, ("trust: qwen-1", "api.x.ai", "hivemind exec")),
        ({"sockets": (("codex-1", "api.x.ai"),)}, Severity.NOTE, ("codex-1 has a WebSocket to api.x.ai", "passes by")),
    ],
)
def test_what_the_proxy_has_seen_pass_by_is_told(sick, monkeypatch, seen, verdict, words):
    proxy = replace(doctor.background.running(PORT), **seen)
    with monkeypatch.context() as patch:
        patch.setattr(doctor.background, "running", lambda _: proxy)
        assert_one(sick(), *words, verdict=verdict)


DATE = "Date: Sun, 06 Nov 1994 08:49:37 GMT"
WHEN = 784111777.0


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(doctor, "_CONNECT_S", 120.0)
    monkeypatch.setattr(doctor, "_ANSWER_S", 120.0)


@pytest.fixture
def authority(tmp_path):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return ca


@contextmanager
def proxy(authority, *, connect="HTTP/1.1 200 OK", answer="HTTP/1.1 404 Not Found"):
    """Serves one client; the list gets what it asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("api.test").configure_cert(context)
    asked = []

    def serve():
        with suppress(OSError):
            client, _ = listener.accept()
            with client:
                client.settimeout(120)
                asked.append(client.recv(4096).decode())
                client.sendall(f"{connect}\r\n\r\n".encode())
                with context.wrap_socket(client, server_side=True) as secure:
                    asked.append(secure.recv(4096).decode())
                    secure.sendall(f"{answer}\r\n\r\n".encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Thread(target=serve, daemon=True)
        server.start()
        yield listener.getsockname()[1], asked
        server.join(120)


@each(
    ("answer", "date"),
    [
        (f"HTTP/1.1 404 Not Found\r\n{DATE}", WHEN),
        ("HTTP/1.1 200 OK", None),
        (f"HTTP/1.1 502 Bad Gateway\r\n{DATE}", None),
        ("HTTP/1.1 200 OK\r\nDate: yesterday", None),
        ("", None),
    ],
)
def test_tls_through_the_proxy_and_the_providers_clock(authority, tmp_path, answer, date):
    with proxy(authority, answer=answer) as (port, asked):
        assert shake_hands(port, "api.test", tmp_path / "ca.pem") == Handshake(date)
    assert asked[0].startswith("CONNECT api.test:443 HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic " in asked[0]
    assert asked[1].startswith("HEAD / HTTP/1.1\r\nHost: api.test\r\n")


def test_a_bundle_without_the_ca_is_told_apart(authority, tmp_path):
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    with proxy(authority) as (port, asked):
        assert "CERTIFICATE_VERIFY_FAILED" in shake_hands(port, "api.test", tmp_path / "other.pem")
    assert asked[1:] == [""], "its TLS is whole, so that the proxy reports no client that distrusts it"


def test_a_proxy_that_refuses_and_one_that_is_not_there_say_so(authority, tmp_path):
    with proxy(authority, connect="HTTP/1.1 407 Proxy Authentication Required") as (port, _):
        assert "407" in shake_hands(port, "api.test", tmp_path / "ca.pem")
    with socket.socket() as deaf:  # nobody else has its port, and it does not listen
        deaf.bind(("127.0.0.1", 0))
        assert "refused" in shake_hands(deaf.getsockname()[1], "api.test", tmp_path / "ca.pem")


def test_a_bundle_that_is_no_file_of_certificates_says_so(tmp_path):
    (tmp_path / "empty.pem").write_text("nothing")
    assert isinstance(shake_hands(1, "api.test", tmp_path / "empty.pem"), str)
    assert "No such file" in shake_hands(1, "api.test", tmp_path / "missing.pem")


IDS = {
    *("mitmproxy", "mitmproxy.missing", "mitmproxy.old", "tokenizer", "tokenizer.damaged"),
    *("pools.sharing", "prices", "prices.old"),
    *("profiles", "profiles.unreadable", "proxy", "proxy.none", "proxy.stranger", "proxy.unreadable"),
    *("open-files", "open-files.few", "ca", "ca.key", "ca.missing", "ca.named", "ca.names-key", "ca.unreadable"),
    *("agent.unknown", "variables", "way.base-url", "way.detour"),
    *("ca.unset", "way", "way.elsewhere", "way.nameless", "way.scheme", "way.unset", "no-proxy"),
    *("unscheduled.unclaimed", "unscheduled.vendor", "unscheduled.websocket", "websocket.refused"),
    *("node.old", "node.unset", "trust", "trust.client", "trust.distrusted", "trust.no-tls", "trust.untried"),
    *("alert.addresses", "alert.command", "alert.none", "alert.refused", "alert.taken"),
    *("agent.nameless", "clock", "clock.off", "clock.unknown"),
    *("calls.unclaimed", "calls.vendor", "base-url.local", "base-url.unclaimed"),
}
"""Programs know them: they do not change."""


def test_findings_have_ids_that_stay_and_bad_ones_a_cure():
    ids = []
    for module in (doctor, hindrance, alert):
        for call in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding":
                ids.append(call.args[1].value)
                assert len(call.args) == 4 or ast.unparse(call.args[0]) != "Severity.BAD", ids[-1]
    assert sorted(ids) == sorted(IDS)
