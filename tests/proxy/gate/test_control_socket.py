"""What the socket does, and the options of a running proxy: told without secrets, set like `--set`."""

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from mitmproxy import exceptions
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons

from hivemind_addon.kernel.values.command import Pause
from hivemind_addon.kernel.values.events import PersonActed
from hivemind_addon.proxy.api.command import CommandReply, OpenPage, Record, SetConfig, ShowConfig
from hivemind_addon.proxy.api.control import read_report, send_command
from hivemind_addon.proxy.gate.interfaces.control_socket import option_views, set_option
from hivemind_addon.proxy.gate.options import BadOption, add_options, read_settings
from hivemind_addon.proxy.run.option_table import OPTIONS, VIEW_KEEP
from tests.patience import PATIENCE_S
from tests.proxy.gate.samples import make_proxy


class FollowedOptions:
    """Declares our options, and has the files follow them, as the addon does."""

    name = "options"

    def __init__(self, proxy):
        self.proxy = proxy

    def load(self, loader):
        add_options(loader)

    def configure(self, updated):
        if "hivemind_capture" in updated:
            self.proxy.settings.current = dataclasses.replace(read_settings(self.proxy.options), journal=None)
            self.proxy.files.follow(self.proxy.settings.current)


@pytest.fixture
async def proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.proxy.system.folders.LONGEST_SOCKET_PATH", 1000)
    monkeypatch.chdir(tmp_path)
    made = make_proxy()
    with taddons.context(Proxyserver()) as context:
        made.options = context.options
        context.master.addons.add(FollowedOptions(made))
        server = context.master.addons.get("proxyserver")
        monkeypatch.setattr(type(server), "listen_addrs", lambda _: [("127.0.0.1", 4711), ("127.0.0.1", 4712)])
        yield made
        await made.files.close()


def choose(proxy, control):
    proxy.settings.current = dataclasses.replace(proxy.settings.current, control=control)


async def test_others_read_what_goes_on_while_the_proxy_runs(proxy, caplog):
    control, chosen = proxy.control, Path("own.sock")  # relative: a test's folder is too deep for a socket
    choose(proxy, chosen)
    await control.open()
    report = await asyncio.to_thread(read_report, chosen, timeout_s=PATIENCE_S)
    assert report.proxy.listens == ("127.0.0.1:4711", "127.0.0.1:4712")
    assert report.snapshot.at > 0
    choose(proxy, control=False)
    await control.open()
    assert not chosen.exists()
    chosen.write_text("not a socket")
    choose(proxy, chosen)
    await control.open()
    assert "no control socket" in caplog.text


async def test_it_opens_only_when_the_ports_are_known(proxy):
    control, chosen, bound = proxy.control, Path("own.sock"), asyncio.get_running_loop().create_future()
    choose(proxy, chosen)
    opening = asyncio.ensure_future(control.open(after=bound))
    await asyncio.wait([opening], timeout=0)
    assert not chosen.exists()
    bound.set_result(None)
    await opening
    assert chosen.exists()
    control.close()
    assert not chosen.exists()


async def test_a_person_steers_and_records(proxy, tmp_path):
    control, chosen, file = proxy.control, Path("own.sock"), tmp_path / "of.flow"
    choose(proxy, chosen)
    await control.open()

    async def tell(command):
        return await asyncio.to_thread(send_command, chosen, command, timeout_s=PATIENCE_S)

    assert (await tell(Pause())).done
    assert await tell(Record(None)) == CommandReply(done=False, text="nothing was recorded")
    assert await tell(Record(str(file))) == CommandReply(done=True, text=f"recording into {file}")
    assert proxy.files.recorder.path == file
    assert await tell(Record(str(file))) == CommandReply(done=False, text=f"{file} is recorded already")
    assert await tell(Record(None)) == CommandReply(done=True, text="recording no more")
    assert proxy.files.recorder is None
    told = [event.text for event in proxy.heard if isinstance(event, PersonActed)]
    assert told[-2:] == [f"recording into {file}", "recording no more"]
    control.close()


async def test_a_person_sees_and_sets_options(proxy):
    control, chosen = proxy.control, Path("own.sock")
    choose(proxy, chosen)
    await control.open()

    async def tell(command):
        return await asyncio.to_thread(send_command, chosen, command, timeout_s=PATIENCE_S)

    said = await tell(ShowConfig())
    assert {"name", "value", "default", "help", "settable", "guarded"} == set(said.value[0])
    assert (await tell(SetConfig("hivemind_keep", "3 flows"))).done
    assert not (await tell(SetConfig("hivemind_keep", "3 flows"))).value
    assert (await tell(SetConfig("hivemind_keep", "4 flows", by="ann"))).done
    told = [(event.text, event.by) for event in proxy.heard if isinstance(event, PersonActed)]
    assert told == [
        ("hivemind_keep is now 3 flows (by a person)", ""),
        ("hivemind_keep is now 4 flows (by agent ann)", "ann"),
    ]
    control.close()


class Options:
    """Declares our options, and refuses what the addon refuses."""

    name = "options"

    def __init__(self):
        self.settings = None

    def load(self, loader):
        add_options(loader)

    def configure(self, updated):
        from mitmproxy import ctx

        try:
            self.settings = read_settings(ctx.options)
        except BadOption as error:
            raise exceptions.OptionsError(str(error)) from error


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with taddons.context(Proxyserver()) as context:
        context.master.addons.add(Options())
        yield context.options


def shown(name):
    return next(view for view in option_views() if view.name == name)


def test_every_option_is_told(options):
    assert [view.name for view in option_views()] == [option.name for option in OPTIONS]
    assert shown("hivemind_keep").value == shown("hivemind_keep").default == VIEW_KEEP
    assert shown("hivemind_redirect").value == []
    assert not shown("hivemind_control").settable


def test_what_names_files_runs_programs_or_leads_keys_elsewhere_is_for_persons(options):
    free = {"hivemind_journal_keep", "hivemind_capture_content", "hivemind_reverse_profile", "hivemind_keep"}
    free |= {"hivemind_contexts", "hivemind_context_warning", "hivemind_metrics_agents"}
    assert {view.name for view in option_views() if not view.guarded} == free


def test_one_is_set_with_or_without_its_prefix(options):
    for name, text, value, told in (
        ("hivemind_keep", "20 flows", "20 flows", "hivemind_keep is now 20 flows"),
        ("keep", "off", "off", "hivemind_keep is now off"),
        ("hivemind_capture_content", "FALSE", False, "hivemind_capture_content is now false"),
        (
            "redirect",
            "a.test=127.0.0.1:1 b.test=127.0.0.1:2",
            ["a.test=127.0.0.1:1", "b.test=127.0.0.1:2"],
            "hivemind_redirect is now a.test=127.0.0.1:1 b.test=127.0.0.1:2",
        ),
        ("hivemind_log", "-", "-", "hivemind_log is now -"),
    ):
        said = set_option(name, text)
        assert (said.done, said.text, said.value) == (True, told, value), name
        full = name if name.startswith("hivemind_") else f"hivemind_{name}"
        assert getattr(options, full) == value, name
        again = set_option(name, text)
        assert (again.done, again.value) == (True, None), name
        assert again.text.endswith("already"), name


def test_what_is_refused_changes_nothing(options):
    for name, text, told in (
        ("hivemind_keeep", "1", "no such option; did you mean hivemind_keep?"),
        ("ssl_insecure", "true", "ssl_insecure: no such option"),
        ("hivemind_control", "off", "cannot be changed while the proxy runs"),
        ("hivemind_cluster", "valkey://cache.test", "cannot be changed while the proxy runs"),
        ("hivemind_keep", "many", "'many' is no amount of flows"),
        ("hivemind_allow_lan", "perhaps", "'perhaps' is neither true nor false"),
        ("hivemind_redirect", "nonsense", "'nonsense' is not HOST=ADDRESS:PORT"),
        ("hivemind_redirect", "'open", "close its quotes"),
        ("hivemind_log", "night.jsonl", "is relative, and the proxy is in /"),
        ("hivemind_agents", "/nowhere/agents.yaml", "/nowhere/agents.yaml"),
    ):
        before = [getattr(options, option.name) for option in OPTIONS]
        said = set_option(name, text)
        assert not said.done, name
        assert told in said.text, name
        assert "\n" not in said.text, name
        assert before == [getattr(options, option.name) for option in OPTIONS], name


def test_a_command_is_told_without_what_may_be_a_key_in_it(options):
    said = set_option("notify", "/bin/sh -c 'curl https://user:secret@example.test'")
    assert (said.done, said.text) == (True, "hivemind_notify is now /bin/sh …")
    assert shown("hivemind_notify").value == "/bin/sh …"
    assert options.hivemind_notify.endswith("secret@example.test'")


def test_a_cluster_is_shown_as_it_is_without_its_password(options, monkeypatch):
    assert shown("hivemind_cluster").value == ""
    monkeypatch.setenv("HIVEMIND_CLUSTER", "valkey://ali:open-sesame@cache.test")
    assert shown("hivemind_cluster").value == "valkey://ali@cache.test:6379/0"
    options.update(hivemind_cluster="valkeys://:open-sesame@other.test/2")
    assert shown("hivemind_cluster").value == "valkeys://other.test:6379/2"


class Listener:
    def __init__(self, mode, host, port):
        self.mode, self.listen_addrs = ProxyMode.parse(mode), ((host, port),)


@pytest.mark.parametrize(
    ("listeners", "address"),
    [
        ([("regular", "127.0.0.1", 8080)], "http://127.0.0.1:8080/"),
        ([("regular", "0.0.0.0", 8080), ("regular", "127.0.0.1", 9090)], "http://127.0.0.1:8080/"),
        ([("regular", "::1", 8080)], "http://[::1]:8080/"),
        ([("reverse:http://ollama.test", "127.0.0.1", 8080), ("regular", "127.0.0.1", 9090)], "http://127.0.0.1:9090/"),
        ([("reverse:http://ollama.test", "127.0.0.1", 8080)], ""),
        ([("regular", "192.0.2.7", 8080)], ""),
    ],
)
async def test_a_key_to_the_page_is_given_where_a_browser_of_this_machine_sees_it(
    proxy, monkeypatch, listeners, address
):
    served = [Listener(*one) for one in listeners]
    monkeypatch.setattr(
        "hivemind_addon.proxy.gate.listeners.ctx.master.addons.get", lambda _: SimpleNamespace(servers=served)
    )
    heard = []
    proxy.driver.note = heard.append
    said = proxy.control.carry_out(OpenPage("ann\n\x1b[31m"))
    if not address:
        assert (said.done, "--mode regular" in said.text, heard) == (False, True, [])
        return
    url, _, key = said.value["url"].partition("#key=")
    assert (url, len(key) > 40, said.value["lasts_s"]) == (address, True, 60.0)
    assert key not in said.text + heard[0].text
    assert "\x1b" not in heard[0].text
