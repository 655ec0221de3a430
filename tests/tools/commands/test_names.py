"""Names for the shell, from the running proxy; and never a word of trouble."""

import msgspec
import pytest
from click.shell_completion import ShellComplete

from hivemind_addon.proxy.api.command import CommandReply, OptionView
from hivemind_addon.proxy.api.control import control_socket
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import names
from tests.tools.commands.served import serving
from tests.tools.dash.samples import KEY, flying, pool, report, session, waiting

pytestmark = pytest.mark.usefixtures("folders")

REPORT = report(
    pool(in_flight=1, queued=1, tickets=(flying("t-run", agent="here"), waiting("t-wait", agent="here"))),
    sessions=(session("gone"), session("here"), session("two\nlines")),
)
OPTIONS = [OptionView("hivemind_keep", "", "", ""), OptionView("hivemind_control", "", "", "", settable=False)]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(names, "_PATIENCE_S", 120.0)


def completed(*words):
    """What is offered for the last word."""
    *before, last = words
    return {item.value: item.help for item in ShellComplete(main, {}, "hivemind", "_X").get_completions(before, last)}


def test_agents_pools_requests_and_options_are_offered():
    answer = lambda _: CommandReply(done=True, text="", value=msgspec.to_builtins(OPTIONS))  # noqa: E731
    with serving(REPORT, answer=answer):
        assert completed("status", "agents", "") == {"here": "m", "gone": "m"}
        assert completed("priority", "h") == {"here": "m"}
        assert completed("pause", "api") == {"api.test": "all its pools", str(KEY): "1 in flight, 1 queued"}
        assert completed("eta", "here", "--pool", "api.test/") == {str(KEY): "1 in flight, 1 queued"}
        assert completed("cancel", "t-w") == {"t-wait": "here: queued"}
        assert completed("config", "set", "") == {"hivemind_keep": "", "hivemind_control": "only at the start"}


def test_the_port_that_was_typed_counts(monkeypatch):
    with serving(REPORT, port=9090):
        assert completed("pause", "api") == {}
        assert completed("pause", "-p", "9090", "api.test/") != {}
        monkeypatch.setenv("HIVEMIND_PORT", "9090")
        assert completed("pause", "api.test/") != {}


def test_commands_are_offered_with_what_they_do():
    assert completed("pau") == {"pause": "Send nothing more upstream"}
    assert "--version" in completed("--v")
    assert set(completed("capture", "st")) == {"start", "stop", "strip"}


@pytest.mark.parametrize(
    "words", [("status", "agents", ""), ("pause", ""), ("cancel", ""), ("config", "get", ""), ("eta", "")]
)
def test_where_anything_is_amiss_nothing_is_offered_and_nothing_said(words, capfd, monkeypatch):
    assert completed(*words) == {}, "no proxy runs"
    control_socket(8080).write_text("no socket")
    assert completed(*words) == {}
    monkeypatch.setenv("HIVEMIND_PORT", "nonsense")
    assert completed(*words) == {}
    assert capfd.readouterr() == ("", "")
