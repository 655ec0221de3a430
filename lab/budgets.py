"""How large the code is, and the budgets in pyproject.toml that it may not exceed: `make budgets`.

A budget is a measure of today, rounded up. `tests/lab/test_budgets.py` fails above a budget, and below it by more than
the rounding: a commit that makes something smaller lowers the budget, so that nobody can use up the difference.
`python -m lab.budgets --lower` writes the smaller ones; a larger one is written by hand, with a reason in the commit.
"""

import ast
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import tokenize
import tomllib
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tomlkit
from rich.console import Console
from rich.table import Table

from lab.running_server import running_server

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "hivemind_addon"
PRODUCT = ("kernel", "formats", "proxy", "tools")
PACKAGES = (*PRODUCT, "plugins", "sim", "lab")
WORDS = ("what", "one", "it", "its", "told", "whoever", "whom")
"""Words that plain English needs seldom, counted per 1,000 words of docstrings."""
STEPS = {"lines": 50, "tokens": 500, "words": 0.5, "loaded.lines": 50, "request.changes": 20}
"""What a measure is rounded up to, by the first words of its name; 1 for all others."""
_START_S = 60
_SPENT = 12
"""Requests of which the last is refused at the latest: the agent has a budget of 200 tokens."""
_NO_TOKENS = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: Path
    text: str

    @property
    def lines(self) -> int:
        """All lines, empty ones and comments included."""
        return len(self.text.splitlines())

    @property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return _parsed(self.text)

    def docstrings(self) -> Iterator[ast.Expr]:
        """The docstrings of the module, its classes and functions, and the strings below fields."""
        for node in ast.walk(self.tree):
            for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
                match statement:
                    case ast.Expr(ast.Constant(str())):
                        yield statement

    def tokens(self) -> int:
        """Python's tokens without comments, docstrings, newlines and indentation."""
        texts = {(node.lineno, node.col_offset) for node in self.docstrings()}
        found = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(token.type not in _NO_TOKENS and token.start not in texts for token in found)

    def words(self) -> Counter[str]:
        """The words of its docstrings, in lower case."""
        texts = (node.value.value for node in self.docstrings() if isinstance(node.value, ast.Constant))
        return Counter(word for text in texts for word in re.findall("[a-z]+", str(text).lower()))


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def files(folder: Path) -> list[Source]:
    """The Python files below a folder, by name."""
    return [Source(path, path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]


def import_cycles(graph: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """The sets of nodes that reach each other; a node alone is none."""

    @cache
    def reached(start: str) -> frozenset[str]:
        found: set[str] = set()
        todo = [start]
        while todo:
            for name in set(graph.get(todo.pop(), ())) - found:
                found.add(name)
                todo.append(name)
        return frozenset(found)

    circular = [name for name in graph if name in reached(name)]
    cycles = {frozenset(b for b in circular if b in reached(a) and a in reached(b)) for a in circular}
    return [set(cycle) for cycle in sorted(cycles, key=sorted)]


def import_graph(sources: Iterable[Source]) -> dict[str, set[str]]:
    """The modules of the package, by dotted names below it, and those that each imports, types included."""
    named = {".".join(source.path.relative_to(SOURCES).with_suffix("").parts): source for source in sources}
    graph: dict[str, set[str]] = {}
    for name, source in named.items():
        imported: set[str] = set()
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hivemind_addon"):
                module = (node.module or "").removeprefix("hivemind_addon").removeprefix(".")
                imported |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        graph[name] = (imported & set(named)) - {name}
    return graph


def static_measures() -> dict[str, float]:
    """Sizes, counts and word rates, by name; read from the files."""
    packages = {name: files(ROOT / "lab" if name == "lab" else SOURCES / name) for name in PACKAGES}
    packages["sim"] += files(SOURCES / "lab")
    product = [source for name in PRODUCT for source in packages[name]]
    product += [Source(path, path.read_text(encoding="utf-8")) for path in sorted(SOURCES.glob("*.py"))]
    everything = product + [source for name in PACKAGES if name not in PRODUCT for source in packages[name]]
    measures: dict[str, float] = {}
    for name, sources in {**packages, "product": product, "everything": everything}.items():
        measures[f"lines.{name}"] = sum(source.lines for source in sources)
        measures[f"tokens.{name}"] = sum(source.tokens() for source in sources)
    measures["lines.tests"] = sum(source.lines for source in files(ROOT / "tests"))
    for name, sources in packages.items():
        words = sum((source.words() for source in sources), Counter[str]())
        for word in WORDS:
            measures[f"words.{name}.{word}"] = 1000 * words[word] / words.total()
    names = Counter(
        node.name
        for source in everything
        if not source.path.is_relative_to(ROOT / "lab")
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    cycles = import_cycles(import_graph(source for source in everything if source.path.is_relative_to(SOURCES)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    measures["counts.dependencies"] = len(project["dependencies"])
    measures["counts.class_names_twice"] = sum(count > 1 for count in names.values())
    measures["counts.import_cycles"] = len(cycles)
    measures["counts.longest_import_cycle"] = max(map(len, cycles), default=0)
    return measures


def running_measures() -> dict[str, float]:
    """The modules that a plain mitmdump has loaded after its first requests, and one plain request's way through them.

    A plain request, a refused one, the report and the page come first; the traced request is the last.
    """
    with tempfile.TemporaryDirectory() as name, running_server() as provider:
        folder = Path(name)
        agents, trace = folder / "agents.yaml", folder / "trace.json"
        agents.write_text('agents: {"poor-*": {budgets: [{calls: 1, per: day}]}}', encoding="utf-8")
        options = {
            "confdir": folder,
            "connection_strategy": "lazy",
            "flow_detail": 0,
            "hivemind_agents": agents,
            "hivemind_journal": "off",
            "hivemind_reverse_profile": "anthropic",
        }
        command: list[object] = [Path(sys.executable).parent / "mitmdump", "-s", ROOT / "lab" / "request_trace.py"]
        command += ["-s", ROOT / "hivemind_addon", "--mode", f"reverse:{provider.url}@0", "--listen-host", "127.0.0.1"]
        command += [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
        environment = os.environ | {"HIVEMIND_TRACE": str(trace), "PYTHONUNBUFFERED": "1", "HOME": name}
        process = subprocess.Popen(  # noqa: S603 - our own command
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        try:
            address = f"http://127.0.0.1:{_port(process)}"
            _ask(address, "rich")
            if not any(_ask(address, "poor") >= 400 for _ in range(_SPENT)):
                raise SystemExit("the agent's budget refused nothing")
            for page in ("/report.json", "/"):
                _open(f"{address}{page}", {"Host": "hivemind.internal"})
            _ask(address, "rich", traced=True)
            process.send_signal(signal.SIGTERM)
            process.wait(_START_S)
        finally:
            process.kill()
            process.wait()
        report = json.loads(trace.read_text(encoding="utf-8"))
    loaded = [len(Path(file).read_text(encoding="utf-8").splitlines()) for file in report["loaded"]]
    return {
        "loaded.lines": sum(loaded),
        "loaded.files": sum(lines > 0 for lines in loaded),
        "request.files": report["files"],
        "request.changes": report["changes"],
    }


def _ask(address: str, agent: str, *, traced: bool = False) -> int:
    body = {"model": "sim-1", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello."}]}
    headers = {"content-type": "application/json", "x-api-key": "k", "user-agent": f"{agent}/1", "x-session-id": agent}
    headers |= {"x-trace": "1"} if traced else {}
    return _open(f"{address}/v1/messages", headers, json.dumps(body).encode())


def _open(url: str, headers: Mapping[str, str], body: bytes | None = None) -> int:
    request = urllib.request.Request(url, body, dict(headers))  # noqa: S310 - our own proxy
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_START_S) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def _port(process: subprocess.Popen[str]) -> int:
    printed = []
    for line in process.stdout or ():
        printed.append(line)
        if match := re.search(r" listening at (?:\S*?:)?(\d+)\.", line):
            return int(match[1])
    raise SystemExit("mitmdump does not listen:\n" + "".join(printed))


def budgets() -> dict[str, float]:
    """The budgets of pyproject.toml, by the names of measures."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hivemind"]["budgets"]

    def flat(prefix: str, table: Mapping[str, object]) -> Iterator[tuple[str, float]]:
        for key, value in table.items():
            if isinstance(value, Mapping):
                yield from flat(f"{prefix}{key}.", value)
            else:
                yield f"{prefix}{key}", float(str(value))

    return dict(flat("", tables))


def step(name: str) -> float:
    """What a measure is rounded up to."""
    return next((step for prefix, step in STEPS.items() if name.startswith(prefix)), 1)


def rounded(name: str, value: float) -> float:
    """A measure, rounded up to its step."""
    return round(math.ceil(round(value / step(name), 6)) * step(name), 1)


def complaints(measures: Mapping[str, float], allowed: Mapping[str, float]) -> list[str]:
    """A line for each measure above its budget, far below it, or without one."""
    lines = []
    for name, value in measures.items():
        if (budget := allowed.get(name)) is None:
            lines.append(f"{name}: {value:,.1f} has no budget in pyproject.toml, [tool.hivemind.budgets]")
        elif value > budget:
            lines.append(f"{name}: {value:,.1f} is above the budget of {budget:,g}: make it smaller")
        elif rounded(name, value) + step(name) < budget:
            lines.append(f"{name}: {value:,.1f} is far below the budget of {budget:,g}: `make budgets` lowers it")
    return lines


def lower(measures: Mapping[str, float]) -> None:
    """Write each budget that is larger than its measure needs, and each that is missing, into pyproject.toml."""
    path = ROOT / "pyproject.toml"
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    old = budgets()
    for name, value in measures.items():
        new = rounded(name, value)
        if name in old and new >= old[name]:
            continue
        *tables, key = name.split(".")
        table = document["tool"]["hivemind"]["budgets"]
        for part in tables:
            table = table.setdefault(part, tomlkit.table())
        table[key] = int(new) if new == int(new) else new
    path.write_text(tomlkit.dumps(document), encoding="utf-8")


def main() -> None:
    """Print each measure beside its budget; with `--lower` write the smaller budgets."""
    measures = {**static_measures(), **running_measures()}
    if "--lower" in sys.argv[1:]:
        lower(measures)
    allowed = budgets()
    table = Table(box=None, pad_edge=False)
    for title in ("", "now", "budget"):
        table.add_column(title, justify="right" if title else "left")
    for name, value in measures.items():
        table.add_row(
            name, f"{value:,.1f}" if name.startswith("words") else f"{value:,.0f}", f"{allowed.get(name, 0):,g}"
        )
    Console().print(table)
    for line in complaints(measures, allowed):
        Console().print(line)


if __name__ == "__main__":
    main()
