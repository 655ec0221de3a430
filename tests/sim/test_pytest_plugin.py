"""The plugin in a pytest of its own: what is collected, what a failure reads like, and what loading it costs."""

import subprocess
import sys
from dataclasses import replace

import pytest

from hivemind_addon.plugins.captures.model import encode
from tests.sim.replay.nights import fleet

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester):
    """A folder with a test file and a folder of captures; it is run inside this process."""
    pytester.makepyfile(test_own="def test_own(): pass")
    captures = pytester.mkdir("captures")
    (captures / "night.hivemind").write_bytes(encode(fleet(4, 4)))
    (captures / "notes.txt").write_text("no capture")
    return pytester


def run(project, *arguments):
    ours = ("-p", "hivemind_addon.lab.pytest_plugin", "-p", "no:xdist", "-p", "no:cacheprovider")
    return project.runpytest_inprocess(*ours, *arguments)


def test_a_capture_without_an_expectation_fails_with_the_cure(project):
    result = run(project, "--hivemind-captures", "captures")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*night.expected.json is missing*", "*--hivemind-accept*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_what_is_accepted_is_said_and_expected_from_then_on(project):
    accepted = run(project, "--hivemind-captures", "captures", "--hivemind-accept")
    accepted.assert_outcomes(passed=2)
    accepted.stdout.fnmatch_lines(["*hivemind captures*", "wrote *night.expected.json (* decisions)"])
    run(project, "--hivemind-captures", "captures").assert_outcomes(passed=2)


def test_another_schedule_fails_in_words(project):
    run(project, "--hivemind-captures", "captures", "--hivemind-accept")
    file = project.path / "captures" / "night.expected.json"
    file.write_text(file.read_text().replace('"limits": []', '"limits": ["requests=9/min"]'))
    result = run(project, "--hivemind-captures", "captures")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*replay of night.hivemind*", "the schedule first differs at *", "-*sent*", "+*sent*", "in all: *"]
    )


def test_the_ini_names_folders_for_good(project):
    project.makeini("[pytest]\nhivemind_captures = captures")
    run(project).assert_outcomes(passed=1, failed=1)
    run(project, "captures").assert_outcomes(failed=1)
    run(project, "captures/night.hivemind").assert_outcomes(failed=1)
    run(project, "test_own.py").assert_outcomes(passed=1)


def test_captures_that_nobody_named_are_no_tests(project):
    run(project).assert_outcomes(passed=1)


def test_a_folder_that_is_not_there_is_a_usage_error(project):
    result = run(project, "--hivemind-captures", "gone")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--hivemind-captures: there is no *gone"])


def test_damage_is_a_warning(project):
    night = project.path / "captures" / "night.hivemind"
    night.write_bytes(encode(replace(fleet(4, 4), damage=("the file ends at byte 99",))))
    result = run(project, "--hivemind-captures", "captures", "--hivemind-accept")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*night.hivemind: damaged: the file ends at byte 99; *"])


def test_loading_it_loads_nothing_of_ours_nor_mitmproxy():
    code = "import sys, hivemind_addon.lab.pytest_plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    modules = loaded.stdout.split()
    assert {name for name in modules if name.startswith("hivemind_addon")} == {
        "hivemind_addon",
        "hivemind_addon.lab",
        "hivemind_addon.lab.pytest_plugin",
        "hivemind_addon.sim",
        "hivemind_addon.sim.pytest_plugin",
    }
    assert not {"mitmproxy", "rich", "msgspec", "yaml"} & set(modules)
