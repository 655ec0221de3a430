import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from mitmproxy import options as moptions
from mitmproxy.addons.proxyauth import ProxyAuth
from mitmproxy.addons.proxyserver import Proxyserver

from hivemind_addon.formats.wire.identity import ALONE, Machine
from hivemind_addon.proxy.gate import options as ours
from hivemind_addon.proxy.journal.retention import JournalKeep
from tests.proxy.gate.playbook import Loader


@pytest.fixture
def opts():
    made = moptions.Options()
    loader = Loader(made)
    loader(Proxyserver(), ProxyAuth())
    ours.add_options(loader)
    made.update(listen_host="127.0.0.1")
    return made


def test_the_defaults_are_accepted(opts):
    settings = ours.read_settings(opts)
    assert {"anthropic", "openai", "openai-compatible"} <= set(settings.profiles.by_name)
    assert settings.redirects == {}
    assert settings.reverse_profile == ""
    ours.check_listeners(opts)


def test_every_option_has_its_prefix_and_says_what_it_does(opts):
    for option in ours.OPTIONS:
        assert option.name.startswith(ours.PREFIX)
        assert getattr(opts, option.name) == option.default
        assert option.help.endswith(".")


def test_values_of_the_right_type_are_left_for_mitmproxy():
    for name, value in (
        ("hivemind_allow_lan", True),
        ("hivemind_allow_lan", ["true"]),
        ("hivemind_allow_lan", []),
        ("hivemind_profiles", "folder"),
        ("hivemind_profiles", ["folder"]),
        ("hivemind_redirect", ["a=b:1", "c=d:2"]),
    ):
        deferred = {name: value, "other": 3}
        ours.check_deferred(deferred)
        assert deferred == {name: value, "other": 3}, name


def test_a_value_of_the_wrong_type_is_named_and_taken_out():
    for name, value in (
        ("hivemind_allow_lan", ["perhaps"]),
        ("hivemind_allow_lan", 1),
        ("hivemind_profiles", ["a", "b"]),
        ("hivemind_profiles", None),
        ("hivemind_redirect", "a=b:1"),
        ("hivemind_redirect", [1]),
        ("hivemind_reverse_profile", {"a": 1}),
    ):
        deferred = {name: value}
        with pytest.raises(ours.BadOption, match=f"^{name}: ") as refusal:
            ours.check_deferred(deferred)
        assert "\n" not in str(refusal.value), name
        assert deferred == {}, name


@pytest.mark.parametrize(
    ("name", "says"), [("hivemind_redirects", "did you mean hivemind_redirect"), ("hivemind_zzz", "hivemind_allow_lan")]
)
def test_an_unknown_name_is_taken_out_with_a_suggestion(name, says):
    deferred = {name: ["x"]}
    with pytest.raises(ours.BadOption, match="no such option") as refusal:
        ours.check_deferred(deferred)
    assert says in str(refusal.value)
    assert deferred == {}


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of Linux")
def test_the_journal_is_in_the_users_own_folder_unless_a_file_or_off_is_named(opts, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert ours.read_settings(opts).journal == tmp_path / "hivemind_addon" / "journal.db"
    opts.update(hivemind_journal="off")
    assert ours.read_settings(opts).journal is None
    opts.update(hivemind_journal="mine.db", hivemind_journal_keep="7 days")
    settings = ours.read_settings(opts)
    assert (settings.journal, settings.journal_keep) == (Path.cwd() / "mine.db", JournalKeep(days=7))


def test_a_journal_that_cannot_be_is_refused(opts):
    for name, value in (("hivemind_journal", "/tmp"), ("hivemind_journal_keep", "off"), ("hivemind_journal_keep", "7")):
        opts.update(**{name: value})
        with pytest.raises(ours.BadOption, match=f"^{name}: .*such as|^{name}: .*say days"):
            ours.read_settings(opts)
        opts.update(hivemind_journal="", hivemind_journal_keep="90 days")


def test_the_share_that_contexts_are_warned_at_is_a_part_or_a_percentage(opts):
    assert ours.read_settings(opts).context_warning == 0.8
    for text, share in (("0.65", 0.65), ("65%", 0.65), ("0", 0), ("100 %", 1)):
        opts.update(hivemind_context_warning=text)
        assert ours.read_settings(opts).context_warning == share
    for text in ("80", "-0.1", "nan", "most", "", "5%0"):
        opts.update(hivemind_context_warning=text)
        with pytest.raises(ours.BadOption, match=r"^hivemind_context_warning: '.*' is no share .*say 0\.8, or 80%"):
            ours.read_settings(opts)


def test_redirects_are_read_with_their_ports(opts):
    opts.update(hivemind_redirect=["API.Anthropic.com.=127.0.0.1:9000", "a.test=[::1]:1"])
    assert ours.read_settings(opts).redirects == {"api.anthropic.com": ("127.0.0.1", 9000), "a.test": ("::1", 1)}


def test_a_redirect_of_another_shape_is_refused(opts):
    for spec in ("", "x", "a=", "a=b", "a=b:", "a=b:x", "a=b:0", "a=b:65536", "=b:1", "a=:1", "a=b:-1"):
        opts.update(hivemind_redirect=[spec])
        with pytest.raises(ours.BadOption, match="HOST=ADDRESS:PORT"):
            ours.read_settings(opts)


def test_a_folder_that_is_none_and_a_profile_that_is_none_are_refused(opts, tmp_path):
    opts.update(hivemind_profiles=str(tmp_path / "nothing"))
    with pytest.raises(ours.BadOption, match="hivemind_profiles"):
        ours.read_settings(opts)
    opts.update(hivemind_profiles="", hivemind_reverse_profile="nobody")
    with pytest.raises(ours.BadOption, match=r"hivemind_reverse_profile.*anthropic"):
        ours.read_settings(opts)


def test_a_users_profile_is_read_and_a_bad_one_is_one_line(opts, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: anthropic\nhosts: [mine.test]\n")
    opts.update(hivemind_profiles=str(tmp_path), hivemind_reverse_profile="mine")
    assert ours.read_settings(opts).profiles.match_host("mine.test", 443).name == "mine"
    file.write_text("hosts: 3\n")
    with pytest.raises(ours.BadOption, match=r"mine.yaml: hosts") as refusal:
        ours.read_settings(opts)
    assert "\n" not in str(refusal.value)


def test_what_is_this_machines_own():
    cases = (
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("::ffff:127.0.0.1", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.test", False),
    )
    assert [(host, loopback) for host, loopback in cases if ours.is_loopback(host) is not loopback] == []


def test_names_and_ports_for_others_are_read_and_a_bad_port_is_refused(opts):
    opts.update(hivemind_reverse_hosts=["Models.Example.com.", "*.lab.test"], hivemind_lan_ports=["8000"])
    settings = ours.read_settings(opts)
    assert settings.is_called("models.example.com", 80)
    assert settings.is_called("a.lab.test", 80)
    assert settings.is_called("api.anthropic.com", 443)
    assert not settings.is_called("evil.test", 80)
    assert settings.lan_ports == {8000}
    for bad in ("x", "0", "65536", "127.0.0.1:80", "1" * 99):
        opts.update(hivemind_lan_ports=[bad])
        with pytest.raises(ours.BadOption, match="hivemind_lan_ports"):
            ours.read_settings(opts)


def test_a_wide_listener_wants_a_word(opts):
    opts.update(mode=["regular@0.0.0.0:1", "reverse:http://x.test@127.0.0.1:2"])
    assert ours.open_listeners(opts) == ["0.0.0.0"]
    with pytest.raises(ours.BadOption, match="proxyauth"):
        ours.check_listeners(opts)
    opts.update(hivemind_allow_lan=True)
    ours.check_listeners(opts)
    opts.update(hivemind_allow_lan=False, proxyauth="a:b")
    ours.check_listeners(opts)
    opts.update(proxyauth=None, hivemind_allow_clients=["0.0.0.0/0"])
    with pytest.raises(ours.BadOption, match="proxyauth"):
        ours.check_listeners(opts)
    opts.update(hivemind_allow_clients=["10.0.0.0/8, fd00::/8"])
    ours.check_listeners(opts)


def test_clients_may_be_in_networks_that_are_written_as_such(opts):
    opts.update(hivemind_allow_clients=["10.0.0.0/8,192.168.1.7", "fd00::/8", "::ffff:172.16.0.0/108"])
    settings = ours.read_settings(opts)
    inside = ("10.9.9.9", "192.168.1.7", "::ffff:10.1.1.1", "fd00::1%eth0", "172.31.0.1", "127.0.0.1", "::1")
    assert [host for host in inside if not settings.may_look(host)] == []
    assert [
        host for host in ("192.168.1.8", "11.0.0.1", "fe80::1", "172.32.0.1", "a.test") if settings.may_look(host)
    ] == []
    for bad, cure in (
        ("10.0.0.5/8", "write 10.0.0.0/8, or 10.0.0.5"),
        ("10.0/8", "write 10.0.0.0/8"),
        ("lan", "'lan'"),
    ):
        opts.update(hivemind_allow_clients=[bad])
        with pytest.raises(ours.BadOption, match=r"^hivemind_allow_clients: ") as refusal:
            ours.read_settings(opts)
        assert cure in str(refusal.value)


@pytest.fixture(autouse=True)
async def _loop():
    """mitmproxy's options want a running loop when they change."""
    asyncio.get_running_loop()


def test_the_control_socket_is_the_ports_own_unless_it_is_named_or_off(opts, tmp_path):
    assert ours.read_settings(opts).control is True
    opts.update(hivemind_control="off")
    assert ours.read_settings(opts).control is False
    opts.update(hivemind_control="/tmp/own.sock")
    assert str(ours.read_settings(opts).control) == "/tmp/own.sock"


def test_a_control_socket_that_cannot_be_is_refused(opts):
    for path in ("/nonexistent/own.sock", "/tmp", f"/tmp/{'x' * 120}"):
        opts.update(hivemind_control=path)
        with pytest.raises(ours.BadOption, match=r"^hivemind_control: .*; name a"):
            ours.read_settings(opts)


def test_the_event_log_is_nowhere_unless_a_file_or_standard_output_is_named(opts, tmp_path):
    assert ours.read_settings(opts).event_log is False
    opts.update(hivemind_log="-")
    assert ours.read_settings(opts).event_log is True
    opts.update(hivemind_log=str(tmp_path / "events.jsonl"))
    assert ours.read_settings(opts).event_log == tmp_path / "events.jsonl"


@pytest.mark.parametrize("path", ["/nonexistent/events.jsonl", "/tmp"])
def test_an_event_log_that_cannot_be_is_refused(opts, path):
    opts.update(hivemind_log=path)
    with pytest.raises(ours.BadOption, match=r"^hivemind_log: .*; name one"):
        ours.read_settings(opts)


def test_the_command_to_call_is_split_into_words_and_found(opts):
    assert ours.read_settings(opts).notify is None
    opts.update(hivemind_notify="sh -c 'exit 3'")
    program, *arguments = ours.read_settings(opts).notify.words
    assert program.startswith("/")
    assert program.endswith("/sh")
    assert arguments == ["-c", "exit 3"]


def test_addresses_come_from_the_environment_or_a_file_of_its_owners(opts, monkeypatch, tmp_path):
    monkeypatch.setenv("HIVEMIND_ALERTS", "json://host.test/secret ntfy://topic\n")
    assert [one.name for one in ours.read_settings(opts).notify.addresses] == ["address 1 (JSON)", "address 2 (ntfy)"]
    file = tmp_path / "alerts"
    file.write_text("# mine\n\njson://host.test/secret\n")
    file.chmod(0o600)
    opts.update(hivemind_notify=str(file))
    assert repr(ours.read_settings(opts).notify) == "<Alerts to address 1 (JSON)>"


def test_addresses_that_cannot_be_used_are_one_line_without_any_secret(opts, monkeypatch, tmp_path):
    file = tmp_path / "alerts"
    for text, mode, says in (
        ("slack://sesame", 0o600, r"address 1: Apprise cannot use slack://…"),
        ("sesame", 0o600, r"address 1: Apprise cannot use it"),
        ("# none\n", 0o600, "has no address"),
        ("ntfy://sesame", 0o644, f"can be read by others.*; chmod 600 {file}"),
        ("ntfy://sesame\n" * 21, 0o600, "21 addresses are too many"),
    ):
        file.write_text(text)
        file.chmod(mode)
        opts.update(hivemind_notify=str(file))
        with pytest.raises(ours.BadOption, match=f"^hivemind_notify: .*{says}") as raised:
            ours.read_settings(opts)
        assert "sesame" not in str(raised.value)
    opts.update(hivemind_notify="ntfy://sesame")
    with pytest.raises(ours.BadOption, match="put it into HIVEMIND_ALERTS") as raised:
        ours.read_settings(opts)
    assert "sesame" not in str(raised.value)
    opts.update(hivemind_notify="")
    monkeypatch.setenv("HIVEMIND_ALERTS", "nothing://sesame")
    with pytest.raises(ours.BadOption, match=r"^HIVEMIND_ALERTS: address 1"):
        ours.read_settings(opts)


def test_addresses_without_the_extra_are_one_line_with_the_cure(opts, monkeypatch):
    monkeypatch.setenv("HIVEMIND_ALERTS", "ntfy://topic")
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ours.BadOption, match=r"^HIVEMIND_ALERTS: .* pip install 'hivemind-addon\[alerts\]'$"):
        ours.read_settings(opts)


@pytest.mark.parametrize(("command", "says"), [("no-such-program x", "is no program here"), ("sh 'x", "quotes")])
def test_a_command_that_cannot_be_run_is_refused_at_once(opts, command, says):
    opts.update(hivemind_notify=command)
    with pytest.raises(ours.BadOption, match=f"^hivemind_notify: .*{says}"):
        ours.read_settings(opts)


def test_a_bound_or_an_upstream_that_is_none_is_refused(opts):
    for name, value in (
        ("hivemind_max_concurrency", "0"),
        ("hivemind_max_concurrency", "many"),
        ("hivemind_total_budget", "5 euros"),
        ("hivemind_agent_budget", "-1"),
        ("hivemind_upstream", "127.0.0.1:8000"),
    ):
        opts.update(**{name: value})
        with pytest.raises(ours.BadOption, match=f"^{name}: '{value}' is no .*; "):
            ours.read_settings(opts)
        opts.update(**{name: ""})


def test_a_cluster_is_named_by_its_option_else_by_the_environment(opts, monkeypatch):
    assert ours.read_settings(opts).cluster is None
    monkeypatch.setenv("HIVEMIND_CLUSTER", "valkey://cache.test")
    monkeypatch.setenv("HIVEMIND_CLUSTER_PASSWORD", "open-sesame")
    of_environment = ours.read_settings(opts).cluster
    assert of_environment.address.shown == "valkey://cache.test:6379/0"
    assert of_environment.address.password == "open-sesame"
    assert of_environment.name == "default"
    opts.update(hivemind_cluster="unix:///run/cache.sock", hivemind_cluster_name="team")
    assert ours.read_settings(opts).cluster.address.path == "/run/cache.sock"
    assert ours.read_settings(opts).cluster.name == "team"
    opts.update(hivemind_cluster="off", hivemind_cluster_name="")
    assert ours.read_settings(opts).cluster is None


def test_a_cluster_that_cannot_be_is_refused_without_its_password(opts, monkeypatch):
    for name, value, says in (
        ("hivemind_cluster", "cache.test:6379", "is no engine's URL"),
        ("hivemind_cluster", "valkey://ali:open-sesame@cache.test:many", "has no port that is a number"),
        ("hivemind_cluster", "valkeys://ali:open-sesame@cache.test?ssl_ca_certs=/nowhere.pem", "there is no file"),
        ("hivemind_cluster_name", "two words", "is no name"),
    ):
        opts.update(hivemind_cluster="valkey://cache.test", hivemind_cluster_name="")
        opts.update(**{name: value})
        with pytest.raises(ours.BadOption, match=f"^{name}: .*{says}") as refused:
            ours.read_settings(opts)
        assert "open-sesame" not in str(refused.value)
    opts.update(hivemind_cluster="", hivemind_cluster_name="team")
    with pytest.raises(ours.BadOption, match=r"^hivemind_cluster_name: there is no cluster; say hivemind_cluster=URL"):
        ours.read_settings(opts)
    opts.update(hivemind_cluster="valkey://cache.test")
    monkeypatch.setitem(sys.modules, "redis.asyncio.connection", None)
    with pytest.raises(
        ours.BadOption, match=r"^hivemind_cluster needs redis.*: .* install 'hivemind-addon\[cluster\]'"
    ):
        ours.read_settings(opts)


def test_without_a_cluster_nothing_of_one_is_loaded():
    looks = """
import sys
from mitmproxy.options import Options
from hivemind_addon.proxy.run import compose
from hivemind_addon.proxy.gate import addon, options
from tests.proxy.gate.playbook import Loader
made = Options()
options.add_options(Loader(made))
options.read_settings(made)
compose.make_runtime()
assert not [name for name in sys.modules if name.split(".")[0] == "redis" or ".plugins.cluster" in name]
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HIVEMIND_")}
    done = subprocess.run(
        [sys.executable, "-c", looks], cwd=Path(__file__).parents[3], env=environment, timeout=120, check=False
    )
    assert done.returncode == 0


def test_bounds_of_the_command_line_hold_for_every_profile_and_agent(opts):
    opts.update(hivemind_max_concurrency="3", hivemind_total_budget="1M", hivemind_agent_budget="$2")
    settings = ours.read_settings(opts)
    assert {profile.concurrency.maximum for profile in settings.profiles.by_name.values()} == {1, 3}  # Ollama has 1
    budgets = settings.agents.rules(0.0).granted("anyone").budgets
    assert [(one.tokens, one.micro_usd) for one in budgets] == [(None, 2_000_000), (1_000_000, None)]


def test_a_machine_of_a_cluster_has_a_name_and_alone_it_needs_none(opts, monkeypatch):
    assert ours.read_settings(opts).machine is ALONE
    opts.update(hivemind_cluster_agents="apart")
    with pytest.raises(ours.BadOption, match="hivemind_cluster_agents: there is no cluster"):
        ours.read_settings(opts)
    opts.update(hivemind_cluster="valkey://127.0.0.1:1")
    monkeypatch.setattr(socket, "gethostname", lambda: "Ann's laptop")
    assert ours.read_settings(opts).machine == Machine(has_own_agents=True, name="Ann-s-laptop")
    monkeypatch.setenv("HIVEMIND_CLUSTER_SECRET", "0123456789abcdef")
    opts.update(hivemind_cluster_agents="joined", hivemind_cluster_host="ci-1")
    machine = ours.read_settings(opts).machine
    assert (machine.has_own_agents, machine.name, machine.account_key) == (False, "ci-1", b"0123456789abcdef")
    for name, bad, says in (
        ("hivemind_cluster_agents", "both", "joined nor apart"),
        ("hivemind_cluster_host", "a@b", "no name"),
    ):
        with pytest.raises(ours.BadOption, match=f"{name}: .*{says}"):
            opts.update(**{name: bad}) or ours.read_settings(opts)
        opts.reset()
        opts.update(hivemind_cluster="valkey://127.0.0.1:1")
    monkeypatch.setenv("HIVEMIND_CLUSTER_SECRET", "short")
    with pytest.raises(ours.BadOption, match="openssl rand"):
        ours.read_settings(opts)
