"""Mutation tests: `make mutants` changes a place of the source at a time and checks whether a test fails.

    1. Copy the source and the tests, each as of the chosen commit (else as they lie here).
    2. Run the tests once, and note the executed lines and the processor time of each test.
    3. Draw mutants by a seed. For the same seed and source, a larger sample begins with the smaller sample.
    4. Put each mutant into the copy and run the tests that execute the mutant's line, the cheapest first, until a
       test fails. A mutant that needs many times the usual processor time (an endless wait) counts as noticed, too.

A survivor shows a place where the tests may be too weak, or does the same as the source.
"""

import argparse
import ast
import io
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
PACKAGE = "src/hivemind_addon"
_SOURCES = (f"{PACKAGE}/kernel", f"{PACKAGE}/formats/wire")
_TESTS = ("tests/kernel", "tests/formats/wire")
_NOTICED = ("killed", "timeout")
_SPARE_CPU_S = 15.0
_SPARE_FACTOR = 4.0
_WALL_FACTOR = 20.0
"""The machine may be busy: the clock ends only runs that hang without using the processor."""
_SWAPS: dict[type[ast.AST], ast.AST] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.And: ast.Or(),
    ast.Or: ast.And(),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of a place in the source."""

    path: str
    """From the root of the tree."""
    first_line: int
    """Of the statement, or of the head of an `if` or a loop; 0: the import of the module executes the line."""
    last_line: int
    start: tuple[int, int]
    """Line from 1, and bytes from the beginning of the line."""
    end: tuple[int, int]
    what: str
    new: str

    def apply(self, source: bytes) -> bytes:
        """The changed source."""
        lines = source.splitlines(keepends=True)
        head = b"".join(lines[: self.start[0] - 1]) + lines[self.start[0] - 1][: self.start[1]]
        tail = lines[self.end[0] - 1][self.end[1] :] + b"".join(lines[self.end[0] :])
        return head + self.new.encode() + tail


class _Finder(ast.NodeVisitor):
    """Finds all mutants of a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines = (0, 0)
        self._in_function = False
        self.found: list[Mutant] = []

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        outer = self._lines
        heads = [getattr(node, name, None) for name in ("test", "iter", "subject")]
        ends = [one.end_lineno for one in heads if isinstance(one, ast.expr)]
        last = (ends[0] if ends else node.end_lineno) or node.lineno
        self._lines = (node.lineno, last) if self._in_function else (0, 0)
        super().visit(node)
        self._lines = outer

    def _add(self, node: ast.expr | ast.stmt, what: str, new: str | ast.expr) -> None:
        text = new if isinstance(new, str) else f"({ast.unparse(new)})"
        end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
        self.found.append(Mutant(self._path, *self._lines, (node.lineno, node.col_offset), end, what, text))

    # Nodes without behaviour, or with behaviour for people only.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "__repr__":
            return
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        outer, self._in_function = self._in_function, True
        for statement in node.body:
            self.visit(statement)
        self._in_function = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for one in node.body:
            self.visit(one)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)  # `items[0]` is one of many places for a number; a type's parameters are no values

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    # Statements.

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Attribute) and node.value is not None:
            self._add(node, "statement deleted", "pass")
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(isinstance(target, ast.Name) for target in node.targets):
            self._add(node, "statement deleted", "pass")
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # no docstring
            self._add(node, "statement deleted", "pass")
            self.generic_visit(node)

    def _delete(self, node: ast.AugAssign | ast.Raise | ast.Delete | ast.Break | ast.Continue) -> None:
        self._add(node, "statement deleted", "pass")
        self.generic_visit(node)

    visit_AugAssign = visit_Delete = visit_Break = visit_Continue = _delete  # noqa: N815

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add(node, "statement deleted", "pass")  # and not its words

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add(node, "returns None", "return None")
            self.visit(node.value)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        self._add(node.test, "branch always", "True")
        self._add(node.test, "branch never", "False")
        self._negate(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_If  # noqa: N815

    def visit_While(self, node: ast.While) -> None:
        self._add(node.test, "branch never", "False")
        self.generic_visit(node)

    # Expressions.

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.UnaryOp | ast.Compare):
            self._add(test, "not added", ast.UnaryOp(ast.Not(), test))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, "not removed", node.operand)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for at, op in enumerate(node.ops):
            ops = [*node.ops[:at], _SWAPS[type(op)], *node.ops[at + 1 :]]
            self._add(node, "comparison swapped", ast.Compare(node.left, ops, node.comparators))  # type: ignore[arg-type]
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._add(node, "and / or", ast.BoolOp(_SWAPS[type(node.op)], node.values))  # type: ignore[arg-type]
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        op = _SWAPS.get(type(node.op))
        if op is not None:
            self._add(node, "arithmetic", ast.BinOp(node.left, op, node.right))  # type: ignore[arg-type]
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add(node, "constant", repr(not value))
        elif isinstance(value, int):
            self._add(node, "constant", repr(value + 1))
            self._add(node, "constant", f"({value - 1})")
        elif isinstance(value, float):
            self._add(node, "constant", repr(value * 2 if value else 1.0))
            self._add(node, "constant", repr(value / 2 if value else 0.5))


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in the order of places."""
    finder = _Finder(path)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda one: (one.start, one.end, one.what, one.new))


@dataclass(slots=True)
class Tests:
    """The findings of a run of all tests."""

    __test__ = False

    cpu_s: dict[str, float] = field(default_factory=dict)
    """Of each test, in the order of the run."""
    lines: dict[str, dict[int, list[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    """The tests that executed a line, by file."""
    failed: list[str] = field(default_factory=list)

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that can notice the mutant, the cheapest first."""
        lines = self.lines.get(mutant.path, {})
        executed = range(mutant.first_line, mutant.last_line + 1) if mutant.first_line else lines
        names = {name for at in executed for name in lines.get(at, ())}
        return sorted(names, key=lambda name: (self.cpu_s[name], name))


class _Recorder:
    """The pytest plugin of the run of all tests."""

    def __init__(self, sources: Path) -> None:
        self.tests = Tests()
        self._prefix = str(sources)
        self._root = len(str(sources.parents[1])) + 1
        self._hit: set[tuple[str, int]] = set()
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutants")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self._on_line)

    def _on_line(self, code: Any, line: int) -> object:
        if code.co_filename.startswith(self._prefix):
            self._hit.add((code.co_filename[self._root :], line))
        return sys.monitoring.DISABLE  # until the next test begins

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._hit.clear()
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, sys.monitoring.events.LINE)
        sys.monitoring.restart_events()
        before = time.process_time()
        try:
            return (yield)
        finally:
            self.tests.cpu_s[item.nodeid] = round(time.process_time() - before, 4)
            for path, line in sorted(self._hit):
                self.tests.lines[path][line].append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests.failed.append(report.nodeid)


class _Chosen:
    """The pytest plugin of a mutant's run: only these tests, in this order, without shrinking failures."""

    def __init__(self, names: list[str]) -> None:
        self._order = {name: at for at, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", hypothesis.settings.default, phases=phases)
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self._order), key=lambda one: self._order[one.nodeid])


class Workshop:
    """A copy of the tree, in which runs of tests follow each other."""

    def __init__(self, place: Path) -> None:
        self.place = place.resolve()
        self._log = self.place / "log"
        self._answer = self.place / "answer"

    def record(self, tests: tuple[str, ...]) -> Tests:
        """Run all tests on the unchanged source."""

        def run() -> int:
            recorder = _Recorder(self.place / PACKAGE)
            code = pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[recorder])
            self._answer.write_text(json.dumps(asdict(recorder.tests)))
            return int(code)

        self._in_child(run, None)
        if not self._answer.exists():
            sys.exit(f"the tests did not run; see {self._log}")
        told = json.loads(self._answer.read_text())
        lines = {path: {int(at): names for at, names in of.items()} for path, of in told["lines"].items()}
        return Tests(told["cpu_s"], lines, told["failed"])

    def try_out(self, mutant: Mutant, names: list[str], cpu_s: float) -> str:
        """Run the named tests, which usually take `cpu_s`. Returns "survived", "killed" or "timeout"."""
        path = self.place / mutant.path
        source = path.read_bytes()
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()  # Python knows stale bytecode by size and time, which the mutant may share

        def run() -> int:
            sys.dont_write_bytecode = True
            files = sorted({name.partition("::")[0] for name in names})
            return int(pytest.main(["-q", "-x", "--tb=no", "-p", "no:cacheprovider", *files], plugins=[_Chosen(names)]))

        path.write_bytes(mutant.apply(source))
        try:
            code = self._in_child(run, _SPARE_CPU_S + _SPARE_FACTOR * cpu_s)
        finally:
            path.write_bytes(source)
        return "timeout" if code is None else "killed" if code else "survived"

    def _in_child(self, run: Callable[[], int], cpu_s: float | None) -> int | None:
        """The exit code of a fork, which need not import pytest again; None: the run took too long."""
        child = os.fork()
        if not child:
            code = 70
            try:
                self._become_tests(cpu_s)
                code = run()
            finally:
                os._exit(code)
        descriptor = os.pidfd_open(child)
        try:
            if not select.select([descriptor], [], [], None if cpu_s is None else cpu_s * _WALL_FACTOR)[0]:
                os.kill(child, signal.SIGKILL)
        finally:
            os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return None if code in {-signal.SIGXCPU, -signal.SIGKILL} else code

    def _become_tests(self, cpu_s: float | None) -> None:
        if cpu_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 5))
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # a loop may eat memory, too
        out = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(self.place)
        sys.dont_write_bytecode = False
        sys.path[:] = [
            str(self.place),
            str(self.place / "src"),
            *(one for one in sys.path if one and Path(one) != ROOT),
        ]
        os.environ["HYPOTHESIS_PROFILE"] = "fast"


def _copy(place: Path, commit: str | None, folders: tuple[str, ...]) -> None:
    """The folders as of the commit; None: as they lie here."""
    if commit is not None:
        told = subprocess.run(["git", "archive", commit, *folders], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        with tarfile.open(fileobj=io.BytesIO(told.stdout)) as archive:
            archive.extractall(place, filter="data")
        return
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders]
    for name in subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes((ROOT / name).read_bytes())


def _drawn(place: Path, seed: int) -> list[Mutant]:
    paths = [path for folder in _SOURCES for path in sorted((place / folder).rglob("*.py"))]
    found = [one for path in paths for one in mutants_of(str(path.relative_to(place)), path.read_bytes())]
    random.Random(seed).shuffle(found)
    return found


def _place(told: dict[str, Any]) -> str:
    return json.dumps([told[name] for name in ("path", "start", "end", "new")])


def _noticed(file: Path) -> set[str]:
    """The places of the mutants that an earlier run noticed."""
    results = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {_place(one) for one in results if one["result"] in _NOTICED}


def _affordable(names: list[str], cpu_s: dict[str, float], most_s: float) -> list[str]:
    """As many tests as fit into `most_s`, but at least one."""
    spent, chosen = 0.0, []
    for name in names:
        spent += cpu_s[name]
        if chosen and spent > most_s:
            break
        chosen.append(name)
    return chosen


def _excerpt(place: Path, mutant: Mutant) -> str:
    lines = (place / mutant.path).read_bytes().splitlines()
    head = lines[mutant.start[0] - 1]
    old = head[mutant.start[1] : mutant.end[1] if mutant.end[0] == mutant.start[0] else None].decode()
    return (
        f"{mutant.path.removeprefix(PACKAGE + '/')}:{mutant.start[0]}  {mutant.what}: {old[:90]}  →  {mutant.new[:90]}"
    )


def _report(console: Console, results: list[tuple[Mutant, str]], place: Path) -> None:
    names = ("killed", "timeout", "survived", "not executed")
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, result in results:
        by_file[mutant.path.removeprefix(PACKAGE + "/")][result] += 1
        by_file["all"][result] += 1
    table = Table("file", *names, "noticed")
    for path in [*sorted(by_file.keys() - {"all"}), "all"]:
        counts = by_file[path]
        noticed = sum(counts[name] for name in _NOTICED) / counts.total()
        table.add_row(path, *(str(counts[name]) for name in names), f"{noticed:.0%}")
    console.print(table)
    for name in ("survived", "not executed"):
        for mutant, result in sorted(results, key=lambda one: (one[0].path, one[0].start)):
            if result == name:
                console.print(f"{name}: {_excerpt(place, mutant)}", highlight=False, markup=False, soft_wrap=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="how many mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=50, help="stop after so long (default: %(default)s)")
    parser.add_argument(
        "--most", type=float, default=20, help="processor seconds of tests a mutant (default: %(default)s)"
    )
    parser.add_argument("--source", metavar="COMMIT", help="the source as of this commit")
    parser.add_argument("--tests", metavar="COMMIT", help="the tests as of this commit")
    parser.add_argument("--folders", nargs="+", default=_TESTS, help="where the tests are (default: %(default)s)")
    parser.add_argument("--only", nargs="+", default=[], help="of the sample only what is in files with such a text")
    parser.add_argument("--again", type=Path, metavar="FILE", help="of the sample only what an earlier run noticed")
    parser.add_argument("--out", type=Path, help="a file for the results, one JSON object a line")
    return parser.parse_args()


def _tried(workshop: Workshop, tests: Tests, mutant: Mutant, args: argparse.Namespace) -> str:
    """Try a mutant. Returns the result and appends the result to the file of results."""
    started = time.perf_counter()
    names = _affordable(tests.of(mutant), tests.cpu_s, args.most)
    cpu_s = sum(tests.cpu_s[name] for name in names)
    result = workshop.try_out(mutant, names, cpu_s) if names else "not executed"
    if args.out:
        seconds = round(time.perf_counter() - started, 1)
        told = {**asdict(mutant), "result": result, "tests": len(names), "seconds": seconds}
        with args.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(told, ensure_ascii=False) + "\n")
    return result


def main() -> None:
    args = _arguments()
    console = Console(width=150)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        place = Path(folder).resolve()
        _copy(place, args.source, ("src", "profiles", "scenarios", "pyproject.toml"))
        _copy(place, args.tests, ("tests",))
        sample = _drawn(place, args.seed)[: args.count]
        sample = [one for one in sample if not args.only or any(text in one.path for text in args.only)]
        if args.again is not None:
            noticed = _noticed(args.again)
            sample = [one for one in sample if _place(asdict(one)) in noticed]
        workshop = Workshop(place)
        tests = workshop.record(tuple(args.folders))
        console.print(
            f"{len(tests.cpu_s)} tests, {sum(tests.cpu_s.values()):.0f} s; {len(sample)} mutants of seed {args.seed}"
        )
        if tests.failed:
            sys.exit(f"they fail without a mutant: {', '.join(tests.failed[:5])}")
        results: list[tuple[Mutant, str]] = []
        try:
            for mutant in sample:
                if time.perf_counter() - began > args.minutes * 60:
                    break
                results.append((mutant, _tried(workshop, tests, mutant, args)))
        except KeyboardInterrupt:
            pass  # what was tried is reported
        if len(results) < len(sample):
            console.print(f"{len(results)} of {len(sample)} were tried")
        _report(console, results, place)


if __name__ == "__main__":
    main()
