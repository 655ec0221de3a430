"""Options of a running proxy, and where files lie."""

import json

import msgspec
import pytest
from click.testing import CliRunner

from hivemind_addon.proxy.api.command import CommandReply, OptionView, SetConfig, ShowConfig
from hivemind_addon.tools.cli import main
from tests.tools.commands.served import serving
from tests.tools.dash.samples import report

VIEWS = [
    OptionView("hivemind_keep", "20 flows", "500 flows", "How many."),
    OptionView("hivemind_allow_lan", value=False, default=False, help="Whether."),
    OptionView("hivemind_control", "", "", "Socket.", settable=False),
    OptionView("hivemind_redirect", ["a=b:1", "c=d:2"], [], "Where."),
    OptionView("hivemind_journal", "off", "", "Journal."),
    OptionView("hivemind_log", "-", "", "Log."),
    OptionView("hivemind_new", "/somewhere/new.db", "", "An option of another day."),
]


@pytest.fixture
def asked(folders):
    def answer(command):
        if isinstance(command, SetConfig):
            return CommandReply(done=command.value != "bad", text=f"{command.name} is now {command.value}")
        return CommandReply(done=True, text="", value=msgspec.to_builtins(VIEWS))

    with serving(report(), answer=answer) as seen:
        yield seen


def run(*arguments):
    return CliRunner().invoke(main, ["config", *arguments], env={"COLUMNS": "100"})


def test_they_are_listed(asked, golden):
    golden("config.txt", run().stdout)
    assert json.loads(run("--json").stdout) == msgspec.to_builtins(VIEWS)
    assert run("--csv").stdout.splitlines()[0] == "name,value,default,help,settable,guarded"
    assert run("list").stdout == run().stdout


def test_one_is_told_with_or_without_its_prefix(asked):
    assert run("get", "keep").stdout == run("get", "hivemind_keep").stdout == "20 flows\n"
    assert run("get", "redirect").stdout == "a=b:1 c=d:2\n"
    assert json.loads(run("get", "keep", "--json").stdout)["help"] == "How many."
    result = run("get", "kept")
    assert result.exit_code == 1
    assert "no option 'kept'; there are hivemind_keep, " in result.stderr


def test_one_is_set(asked):
    assert run("set", "hivemind_keep", "9 flows").stdout == "hivemind_keep is now 9 flows\n"
    assert run("set", "keep", "bad").exit_code == 1
    assert json.loads(run("set", "keep", "9", "--json").stdout) == {"done": True, "text": "keep is now 9"}
    assert asked[0] == SetConfig("hivemind_keep", "9 flows")


def test_files_are_where_options_say(asked, folders):
    kept = folders / "state" / "hivemind_addon" / "contexts"
    kept.parent.mkdir(parents=True)
    kept.mkdir()
    rows = {row["what"]: row for row in json.loads(run("files", "--json").stdout)}
    assert "journal" not in rows, "it is off"
    assert "event log" not in rows, "it goes to standard output"
    assert rows["control socket"]["there"]
    assert rows["state folder"]["path"] == str(folders / "state" / "hivemind_addon")
    assert rows["hivemind_new"]["path"] == "/somewhere/new.db"
    assert rows["in it"] == {"what": "in it", "path": str(kept), "there": True}
    assert asked == [ShowConfig()]
    assert "control socket" in run("files").stdout


def test_without_a_proxy_the_usual_places_are_told(folders):
    result = run("files", "--json")
    assert result.exit_code == 0
    assert "no proxy serves port 8080" in result.stderr
    rows = {row["what"]: row for row in json.loads(result.stdout)}
    assert rows["journal"]["path"] == str(folders / "state" / "hivemind_addon" / "journal.db")
    assert not rows["control socket"]["there"]
    assert run("get", "keep").exit_code == 1


def test_the_port_may_stand_before_the_word(folders):
    with serving(
        report(), port=9090, answer=lambda _: CommandReply(done=True, text="", value=msgspec.to_builtins(VIEWS))
    ):
        assert run("-p", "9090", "get", "keep").stdout == "20 flows\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working folder with a file of its own, and no user's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hivemind.yaml"


def test_show_tells_who_says_each_value(project):
    none = CliRunner().invoke(main, ["config", "show"])
    assert none.stdout.startswith("all values are the defaults; write hivemind.yaml here, or\n")
    project.write_text("port: 9090\nkeep: off\n")
    environment = {"HIVEMIND_MAX_CONCURRENCY": "4"}
    shown = CliRunner().invoke(main, ["config", "show", "--origin", "--json"], env=environment)
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(shown.stdout)}
    assert rows["port"] == (9090, str(project))
    assert rows["keep"] == ("off", str(project))
    assert rows["max_concurrency"] == ("4", "HIVEMIND_MAX_CONCURRENCY")
    assert rows["journal_keep"][1] == "default"
    said = CliRunner().invoke(main, ["config", "show", "--csv"], env=environment).stdout.splitlines()
    assert said == ["key,value", "port,9090", "max_concurrency,4", "keep,off"]


def test_a_mistake_in_the_file_is_one_line(project):
    project.write_text("notfy: x\n")
    result = CliRunner().invoke(main, ["config", "show"])
    assert (result.exit_code, result.stderr) == (1, f"Error: {project}: notfy: no such key; did you mean notify?\n")
    project.write_text("port: many\n")
    result = CliRunner().invoke(main, ["pause"])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert f"Error: {project}: port: 'many' is not a port" in result.stderr


def test_the_port_of_the_file_is_that_of_all_commands(project):
    project.write_text("port: 9090\n")
    with serving(report(), port=9090, answer=lambda _: CommandReply(done=True, text="paused")):
        assert CliRunner().invoke(main, ["pause"]).stdout == "paused\n"
