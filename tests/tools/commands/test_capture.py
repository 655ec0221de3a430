import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from tests.plugins.captures.captured import record
from tests.plugins.captures.samples import make_call


@pytest.fixture
def night(tmp_path: Path) -> Path:
    path = tmp_path / "night.flow"
    path.write_bytes(record(make_call("1")) + record(make_call("2", session="s-2")))
    return path


def run(*arguments):
    return CliRunner().invoke(main, ["capture", *map(str, arguments)])


def test_show_draws_a_row_for_each_session(night):
    shown = run("show", night, "--width", 100)
    assert shown.exit_code == 0
    assert "2 calls in 2 attempts" in shown.output
    assert "ann s-2" in shown.output


def test_show_prints_json_for_other_programs(night):
    assert [call["id"] for call in json.loads(run("show", night, "--json").output)["calls"]] == ["1", "2"]


def test_strip_makes_a_copy_and_never_overwrites(night):
    output = night.with_name("bug.flow")
    assert "2 flows, without their words" in run("strip", night, output).output
    again = run("strip", night, output)
    assert again.exit_code == 1
    assert "there already" in again.output


@pytest.mark.parametrize("command", [["show"], ["strip", "out"]])
def test_a_wrong_file_is_one_line(tmp_path, command):
    novel = tmp_path / "novel.txt"
    novel.write_text("Call me Ishmael.")
    name, *more = command
    told = run(name, novel, *(tmp_path / one for one in more))
    assert told.exit_code == 1
    assert told.output.count("\n") == 1
    assert "novel.txt" in told.output
    assert run(name, tmp_path / "missing", *(tmp_path / one for one in more)).output.count("\n") == 1
