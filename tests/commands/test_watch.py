"""One picture of a proxy, and of a report that was kept."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import watch as watching
from tests.commands.served import serving
from tests.dash.record import DATA, recorded
from tests.dash.samples import report


def run(*arguments, **environment):
    return CliRunner().invoke(main, arguments, env=environment)


NIGHT = str(DATA / "night.json")


def test_a_kept_report_is_shown_as_wide_as_columns_say():
    for width in (80, 200):
        result = run("top", "--snapshot", NIGHT, COLUMNS=str(width))
        assert result.exit_code == 0, result.output
        assert max(len(line) for line in result.output.splitlines()) == width
        assert "├ worker-0" in result.output


def test_what_a_terminal_cannot_show_is_no_error():
    command = [sys.executable, "-m", "hivemind_addon", "top", "--snapshot", NIGHT]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b" in flight" in done.stdout


def test_a_kept_report_comes_out_as_it_went_in(tmp_path):
    kept = tmp_path / "again.json"
    kept.write_text(run("top", "--snapshot", NIGHT, "--json").output)
    assert run("top", "--snapshot", str(kept), "--json").output == kept.read_text()


def test_a_kept_report_becomes_a_picture(tmp_path):
    picture = tmp_path / "top.svg"
    assert run("top", "--snapshot", NIGHT, "--svg", str(picture)).exit_code == 0
    assert picture.read_text().startswith("<svg")
    nowhere = run("top", "--snapshot", NIGHT, "--svg", str(tmp_path / "none" / "top.svg"))
    assert (nowhere.exit_code, "No such file" in nowhere.output) == (1, True)


def test_top_prints_one_picture_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(watching, "report_of", lambda _: recorded("incident"))
    monkeypatch.setattr(watching, "reports_of", lambda _: [recorded("incident")])
    assert "provider down" in run("top").output
    assert "what happened" not in run("status").output
    assert "provider down" in run("status").output


@pytest.mark.usefixtures("folders")
def test_status_shows_each_proxy_or_the_one_that_is_named():
    with serving(report(), port=9090), serving(report(), port=9091):
        assert run("status").output.count("hivemind 1.2.3") == 2
        assert run("status", HIVEMIND_PORT="9091").output.count("hivemind 1.2.3") == 1
        assert len(run("status", "--json").output.splitlines()) == 2
        named = run("status", "-p", "9092")
        assert (named.exit_code, "there are some on 9090, 9091" in named.output) == (1, True)
    none = run("status")
    assert (none.exit_code, "no proxy serves port 8080; start it with `hivemind run`" in none.output) == (1, True)


@pytest.mark.usefixtures("folders")
def test_a_proxy_of_another_version_hides_none_of_the_others():
    with serving(replace(report(), version=0), port=9090), serving(report(), port=9091):
        both = run("status")
    assert (both.exit_code, both.stdout.count("hivemind 1.2.3")) == (1, 1)
    assert "the proxy speaks version 0" in both.stderr
