"""The options of a running proxy: told without secrets, set like `--set`, refused like at the start."""

import pytest
from mitmproxy import exceptions
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.test import taddons

from hivemind_addon.proxy.mitm.config import option_views, set_option
from hivemind_addon.proxy.mitm.options import OPTIONS, BadOption, add_options, read_settings
from hivemind_addon.proxy.mitm.retention import DEFAULT_KEEP


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
    assert shown("hivemind_keep").value == shown("hivemind_keep").default == DEFAULT_KEEP
    assert shown("hivemind_redirect").value == []
    assert not shown("hivemind_control").settable


def test_what_names_files_runs_programs_or_leads_keys_elsewhere_is_for_persons(options):
    free = {"hivemind_journal_keep", "hivemind_capture_content", "hivemind_reverse_profile", "hivemind_keep"}
    assert {view.name for view in option_views() if not view.guarded} == free


@pytest.mark.parametrize(
    ("name", "text", "value", "told"),
    [
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
    ],
)
def test_one_is_set_with_or_without_its_prefix(options, name, text, value, told):
    said = set_option(name, text)
    assert (said.done, said.text, said.value) == (True, told, value)
    full = name if name.startswith("hivemind_") else f"hivemind_{name}"
    assert getattr(options, full) == value
    again = set_option(name, text)
    assert (again.done, again.value) == (True, None)
    assert again.text.endswith("already")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("hivemind_keeep", "1", "no such option; did you mean hivemind_keep?"),
        ("ssl_insecure", "true", "ssl_insecure: no such option"),
        ("hivemind_control", "off", "cannot be changed while the proxy runs"),
        ("hivemind_keep", "many", "'many' is no amount of flows"),
        ("hivemind_allow_lan", "perhaps", "'perhaps' is neither true nor false"),
        ("hivemind_redirect", "nonsense", "'nonsense' is not HOST=ADDRESS:PORT"),
        ("hivemind_redirect", "'open", "close its quotes"),
        ("hivemind_log", "night.jsonl", "is relative, and the proxy is in /"),
        ("hivemind_agents", "/nowhere/agents.yaml", "/nowhere/agents.yaml"),
    ],
)
def test_what_is_refused_changes_nothing(options, name, text, told):
    before = [getattr(options, option.name) for option in OPTIONS]
    said = set_option(name, text)
    assert not said.done
    assert told in said.text
    assert "\n" not in said.text
    assert before == [getattr(options, option.name) for option in OPTIONS]


def test_a_command_is_told_without_what_may_be_a_key_in_it(options):
    said = set_option("notify", "/bin/sh -c 'curl https://user:secret@example.test'")
    assert (said.done, said.text) == (True, "hivemind_notify is now /bin/sh …")
    assert shown("hivemind_notify").value == "/bin/sh …"
    assert options.hivemind_notify.endswith("secret@example.test'")
