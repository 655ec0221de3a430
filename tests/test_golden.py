import pytest

pytest_plugins = ["pytester"]

TEST = "def test_it(golden):\n    golden('it.txt', {text!r})\n"


@pytest.fixture
def project(pytester):
    pytester.makeconftest("from tests.golden import golden, pytest_addoption  # noqa: F401")

    def run(text, *arguments):
        pytester.makepyfile(TEST.format(text=text))
        return pytester.runpytest_inprocess("-p", "no:hivemind_addon.lab.pytest_plugin", *arguments)

    return run


def test_a_text_is_accepted_once_and_compared_from_then_on(project, pytester, monkeypatch):
    monkeypatch.setattr("tests.golden.__file__", str(pytester.path / "tests" / "golden.py"))
    missing = project("a  \nb")
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*golden/it.txt is missing; `pytest --accept-golden` writes it*"])
    project("a  \nb", "--accept-golden").assert_outcomes(passed=1)
    assert (pytester.path / "golden" / "it.txt").read_text() == "a\nb\n"
    project("a\nb").assert_outcomes(passed=1)
    changed = project("a\nanother")  # of another length: bytecode is told by size and second
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(["*not as in golden/it.txt*"])
