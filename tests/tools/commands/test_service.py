"""`hivemind logs`; what `stop` and `run --detach` do is in tests/e2e."""

import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from hivemind_addon.tools.launch.detached import old_log
from hivemind_addon.tools.launch.port import log_file

pytestmark = pytest.mark.usefixtures("folders")


def logs(*arguments):
    return CliRunner().invoke(main, ["logs", *arguments])


def test_the_newest_lines_are_printed_also_those_of_the_file_before():
    log = log_file(9090)
    log.parent.mkdir(parents=True, exist_ok=True)
    old_log(log).write_text("one\ntwo\n")
    log.write_text("three\nfour\n")
    assert logs("-p", "9090", "-n", "3").stdout == "two\nthree\nfour\n"
    assert logs("-p", "9090").stdout == "one\ntwo\nthree\nfour\n"
    assert logs("-p", "9090", "-n", "0").stdout == ""


def test_where_there_is_no_log_it_says_what_makes_one():
    result = logs()
    assert (result.exit_code, result.stdout) == (1, "")
    assert "`hivemind run --detach` starts one" in result.stderr
