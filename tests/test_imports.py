"""The house rules that a parser can hold: which part may import which, and what the pure rooms keep away from."""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import hivemind_addon

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hivemind_addon"
SOURCES = sorted(PACKAGE.rglob("*.py"))

PARTS = {
    "system": set[str](),
    "api": {"system"},
    "proxy": {"api", "system", "resources"},
    "tools": {"api", "system", "resources"},
    "lab": {"api", "system", "resources", "proxy", "tools"},
}
"""What each part may import of the others."""

DOORS = {
    # Its profiles.
    "proxy.profile.load",
    # Its files.
    "proxy.journal.schema",
    "proxy.journal.tables",
    "proxy.journal.file",
    "proxy.context.store",
    "proxy.capture.model",
    "proxy.capture.file",
    "proxy.wire.transcript",
    # `profile check` words what the proxy's own readers understand.
    "proxy.capture.check",
    # `doctor` tries whether it can count.
    "proxy.wire.tokenizer",
    # It sends a test alert.
    "proxy.runtime.alerts",
}
"""What the tools see of the proxy beside `api`."""

ENTRIES = {"sim/demo_command.py", "tools/commands/checkout.py"}
"""Commands of the lab."""

ROOMS = {
    "core": set[str](),
    "profile": {"core"},
    "wire": {"profile"},
    "observe": {"core"},
    "runtime": {"core", "observe"},
    "capture": {"observe", "profile", "runtime", "wire"},
    "page": set[str](),
    "journal": {"core", "observe", "runtime"},
    "context": {"profile", "runtime", "wire"},
    "cluster": {"core", "observe", "runtime"},
    "compose": {"cluster", "core", "observe", "runtime", "wire"},
    "mitm": {
        "capture",
        "context",
        "cluster",
        "compose",
        "core",
        "journal",
        "observe",
        "page",
        "profile",
        "runtime",
        "wire",
    },
}
"""What each room of the proxy may import of the others."""


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, anywhere in it; for `from a import b` both `a` and `a.b`."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


@cache
def ours(path: Path) -> frozenset[str]:
    """The modules of this package that a file imports, below it."""
    modules = (module.removeprefix("hivemind_addon.") for module in imports(path) if "hivemind_addon." in module)
    return frozenset(module for module in modules if _is_module(module))


def _is_module(name: str) -> bool:
    place = PACKAGE / Path(*name.split("."))
    return place.with_suffix(".py").is_file()


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def offenders(folder: str, forbidden: Callable[[Path], object]) -> dict[str, object]:
    """The files of a folder that break a rule, and by what."""
    files = [path for path in SOURCES if named(path).startswith(folder)]
    assert files, f"{folder} has gone: change the rule"
    return {named(path): found for path in files if (found := forbidden(path))}


def test_parts_import_one_way():
    def strangers(part: str, path: Path) -> set[str]:
        allowed = {part, *PARTS[part], *({"lab"} if named(path) in ENTRIES else ())}
        doors = DOORS if part == "tools" else set()
        return {module for module in ours(path) if module.split(".")[0] not in allowed and module not in doors}

    for part in PARTS:
        assert not offenders(f"{part}/", lambda path, part=part: strangers(part, path))


def test_every_door_is_used():
    used = {module for path in SOURCES if named(path).startswith("tools/") for module in ours(path)}
    assert used >= DOORS


def test_the_proxy_s_rooms_import_one_way():
    def strangers(room: str, path: Path) -> set[str]:
        rooms = {module.split(".")[1] for module in ours(path) if module.startswith("proxy.")}
        return rooms - ROOMS[room] - {room}

    assert {path.stem for path in (PACKAGE / "proxy").iterdir() if path.name[0] != "_"} == set(ROOMS)
    for room in ROOMS:
        assert not offenders(f"proxy/{room}", lambda path, room=room: strangers(room, path))


def test_only_the_host_s_rooms_import_mitmproxy():
    def strange(path: Path) -> list[str]:
        if named(path).startswith(("proxy/mitm/", "proxy/capture/")):
            return []
        return [module for module in imports(path) if module.split(".")[0] == "mitmproxy"]

    assert not offenders("", strange)


def test_the_core_and_what_it_says_know_no_clock_loop_or_log():
    forbidden = {"asyncio", "time", "datetime", "logging", "threading", "socket", "os"}
    for folder in (
        "proxy/core/",
        "proxy/wire/",
        "proxy/profile/",
        "kernel/values/events.py",
        "kernel/values/ticket.py",
        "formats/base/typed.py",
    ):
        known = forbidden - ({"os", "datetime"} if "core" not in folder else set())
        assert not offenders(folder, lambda path, known=known: {m.split(".")[0] for m in imports(path)} & known)


def test_pure_rooms_use_no_randomness_but_what_is_passed():
    def random_names(path: Path) -> set[str]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
        }
        used |= {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "random"
            for alias in node.names
        }
        return used - {"Random"}

    for folder in ("proxy/core/", "proxy/wire/", "proxy/profile/"):
        assert not offenders(folder, random_names)


BROUGHT = {
    "markdown_it": "markdown-it-py",
    "mitmproxy_rs": "mitmproxy",
    "opentelemetry": "opentelemetry-sdk",
    "yaml": "PyYAML",
    "OpenSSL": "pyOpenSSL",
}
"""Modules whose package has another name."""


def test_whatever_is_imported_is_asked_for_by_its_own_name():
    """What a dependency brings today its next version may bring no more."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    names = {re.split(r"[\[<>=;]", one)[0].strip().lower().replace("-", "_") for one in asked}
    names |= {"pytest"}  # it is there where its plugin is loaded
    used = {module.split(".")[0] for path in SOURCES for module in imports(path)}
    foreign = used - sys.stdlib_module_names - {"hivemind_addon", ""}
    packages = {BROUGHT.get(module, module).lower().replace("-", "_") for module in foreign}
    assert packages <= names


def test_no_public_class_name_means_two_things():
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_docstring_stands_below_another():
    """What it told of is gone."""
    orphans = [
        f"{path.relative_to(PACKAGE)}:{below.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(body := getattr(node, "body", None), list)
        for above, below in pairwise(body)
        if is_text(above) and is_text(below)
    ]
    assert orphans == []


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_both_maps_name_every_folder_and_no_other():
    parts = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    rooms = {
        f"{path.name}/" for part in parts for path in (PACKAGE / part).iterdir() if (path / "__init__.py").is_file()
    }
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("\nImports run one way")[0]
    for indent, names in ((4, parts), (8, rooms)):
        assert set(re.findall(rf"^ {{{indent}}}(\w+/) ", hivemind_addon.__doc__ or "", re.MULTILINE)) == names
        assert set(re.findall(rf"^ {{{indent + 2}}}(\w+/) ", design, re.MULTILINE)) == names
