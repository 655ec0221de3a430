"""A pytest plugin: captures are regression tests of the scheduler's decisions.

    pytest --hivemind-captures tests/captures           every *.hivemind and *.flow there is one test
    pytest --hivemind-captures tests/captures --hivemind-accept     the present decisions become the expected ones

or once and for all, in pyproject.toml:

    [tool.pytest.ini_options]
    hivemind_captures = ["tests/captures"]

Each capture is replayed in virtual time, and what the scheduler decides is compared with `NAME.expected.json` beside
it. Loaded with every pytest of its environment, so whatever it needs is imported when a capture is run.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_SUFFIXES = (".hivemind", ".flow")
_ACCEPTED = "hivemind accepted"


class UnexpectedSchedule(Exception):
    """The test's failure, in words for people; no traceback tells more."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the command line and pyproject.toml may say."""
    group = parser.getgroup("hivemind", "captures of LLM agents, replayed in virtual time")
    group.addoption(
        "--hivemind-captures",
        action="append",
        default=[],
        metavar="DIR",
        help="Replay the captures in this folder (or this one), and compare with what is expected.",
    )
    group.addoption(
        "--hivemind-accept",
        action="store_true",
        help="Write what the scheduler decides now as what is expected.",
    )
    parser.addini(
        "hivemind_captures", "Folders of captures to replay, relative to the root.", type="linelist", default=[]
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect what no argument names: the option's folders, and without any argument the ini's."""
    named = _optional(config)
    for path in named:
        if not path.exists():
            raise pytest.UsageError(f"--hivemind-captures: there is no {path}")
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        named += _lasting(config)
    present = [(config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args]
    config.args += [str(path) for path in named if not any(path.resolve().is_relative_to(one) for one in present)]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "CaptureFile | None":
    """A capture in one of the named folders."""
    if file_path.suffix not in _SUFFIXES:
        return None
    named = (*_optional(parent.config), *_lasting(parent.config))
    if any(file_path.resolve().is_relative_to(path.resolve()) for path in named):
        return CaptureFile.from_parent(parent, path=file_path)
    return None


def _optional(config: pytest.Config) -> list[Path]:
    """What the command line names."""
    return [config.invocation_params.dir / path for path in config.getoption("--hivemind-captures")]


def _lasting(config: pytest.Config) -> list[Path]:
    """What the ini names, as far as it is there: it may be written before the first capture is recorded."""
    return [path for name in config.getini("hivemind_captures") if (path := config.rootpath / name).exists()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was written is said, since a test that writes passes."""
    reports = terminalreporter.getreports("passed")
    lines = [line for report in reports for name, line in report.user_properties if name == _ACCEPTED]
    if lines:
        terminalreporter.section("hivemind captures")
        for line in lines:
            terminalreporter.write_line(str(line))


class CaptureFile(pytest.File):
    """A capture; one test."""

    def collect(self) -> Iterator[pytest.Item]:
        """The replay."""
        yield CaptureReplay.from_parent(self, name="schedule")


class CaptureReplay(pytest.Item):
    """What the scheduler decides on a capture is what is expected."""

    def runtest(self) -> None:
        """Replay and compare, or replay and write."""
        from hivemind_addon.sim.replay.compare import Unlike, accept, check  # noqa: PLC0415 - see the top

        if self.config.getoption("--hivemind-accept"):
            accepted = accept(self.path)
            self._warn(accepted.told)
            if accepted.change:
                self.user_properties.append((_ACCEPTED, accepted.change))
            return
        try:
            self._warn(check(self.path))
        except Unlike as error:
            raise UnexpectedSchedule(str(error)) from error

    def _warn(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            warning = pytest.PytestWarning(f"{self.path.name}: {line}")
            warnings.warn_explicit(warning, category=None, filename=str(self.path), lineno=1)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Words, where the schedule is what failed."""
        if isinstance(excinfo.value, UnexpectedSchedule):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """How failures are headed."""
        return self.path, None, f"replay of {self.path.name}"
