"""How heavy the house is, in numbers: `make house`. Compared with its goals, so that it cannot creep."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hivemind_addon.sim.server import running_server

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hivemind_addon"
LOADED = "proxy.mitm.addon"
START_S = 60


class House:
    """The package as its source files, and what each imports."""

    def __init__(self) -> None:
        self.files = {_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}
        self.trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.files.items()}
        self.imports = {name: set(self._imported(name)) - {name} for name in self.files}

    def _imported(self, name: str) -> Iterator[str]:
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hivemind_addon"):
                module = (node.module or "").removeprefix("hivemind_addon").removeprefix(".")
                for alias in node.names:
                    below = f"{module}.{alias.name}".removeprefix(".")
                    yield below if below in self.files else module

    def lines(self, names) -> int:
        return sum(len(self.files[name].read_text(encoding="utf-8").splitlines()) for name in names)

    def below(self, start: str) -> set[str]:
        """What importing a module loads of ours; packages' own files have no code."""
        found, todo = set(), [start]
        while todo:
            name = todo.pop()
            if name not in found and name in self.files:
                found.add(name)
                todo.extend(self.imports[name])
        return {name for name in found if self.files[name].name != "__init__.py"}

    def room(self, prefix: str) -> set[str]:
        return {name for name, path in self.files.items() if name.startswith(prefix) and path.name != "__init__.py"}

    def floors(self, names: set[str]) -> int:
        """The longest way down through the imports; what imports each other shares a floor."""
        heights: dict[str, int] = {}

        def height(name: str, above: tuple[str, ...]) -> int:
            if name in above:
                return 0
            if name not in heights:
                heights[name] = 1 + max(
                    (height(one, (*above, name)) for one in sorted(self.imports[name] & names)), default=0
                )
            return heights[name]

        return max(height(name, ()) for name in sorted(names))

    def twice(self) -> list[str]:
        """Public class names that are defined more than once."""
        names = Counter(
            node.name
            for tree in self.trees.values()
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
        return sorted(name for name, count in names.items() if count > 1)


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def one_request() -> dict[str, int]:
    """What one plain request runs through in a real mitmdump, profiled from its head to the proxy's end.

    The second one: at a provider's first the profile is taken apart.
    """
    with tempfile.TemporaryDirectory() as folder, running_server() as provider:
        told = Path(folder) / "trace.json"
        settings = {
            "confdir": folder,
            "connection_strategy": "lazy",
            "flow_detail": "0",
            "hivemind_journal": "off",
            "hivemind_reverse_profile": "anthropic",
        }
        command = [Path(sys.executable).parent / "mitmdump", "-s", Path(__file__).with_name("trace.py")]
        command += ["-s", ROOT / "hivemind_addon", "--mode", f"reverse:{provider.url}@0", "--listen-host", "127.0.0.1"]
        command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        environment = os.environ | {"HIVEMIND_TRACE": str(told), "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        try:
            port = _port(process)
            body = {"model": "sim-1", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello."}]}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/messages",
                json.dumps(body).encode(),
                {"content-type": "application/json", "x-api-key": "k"},
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            for _ in range(2):
                with opener.open(request, timeout=START_S) as answer:
                    answer.read()
            process.send_signal(signal.SIGTERM)
            process.wait(START_S)
        finally:
            process.kill()
            process.wait()
        return json.loads(told.read_text())


def _port(process: subprocess.Popen) -> int:
    said = []
    for line in process.stdout:
        said.append(line)
        if match := re.search(r" listening at (?:\S*?:)?(\d+)\.", line):
            return int(match[1])
    raise SystemExit("mitmdump does not listen:\n" + "".join(said))


def measures() -> Iterator[tuple[str, str, str]]:
    """What is measured, how much it is, and the goal."""
    house = House()
    core, loaded = house.room("proxy.core"), house.below(LOADED)
    doors = {one for name in house.room("tools") for one in house.imports[name] if one.split(".")[0] == "proxy"}
    arrows = sum(len(house.imports[name] & core) for name in core)
    tests = sorted((ROOT / "tests").rglob("*.py"))
    test_lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests)
    request = one_request()
    everything = house.room("")
    yield "src: lines, files", f"{house.lines(everything):,}, {len(everything)}", "42,000"
    yield "what mitmdump loads: lines, files", f"{house.lines(loaded):,}, {len(loaded)}", "19,000, 90"
    yield (
        "core: lines, files, floors, arrows",
        f"{house.lines(core):,}, {len(core)}, {house.floors(core)}, {arrows}",
        "6,000, 22, 10, 90",
    )
    yield (
        "one plain request: files, changes of file, straight back",
        f"{request['files']}, {request['changes']}, {request['back']}",
        "40, 300, 60",
    )
    yield "public class names defined twice", str(len(house.twice())), "0"
    yield "modules of the proxy that tools import", str(len(doors)), "10"
    yield "tests: lines", f"{test_lines:,}", "36,000"


def main() -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("", "now", "goal, at most"):
        table.add_column(name, justify="right" if name else "left")
    for row in measures():
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
