"""The house rules that a parser can hold: who may import whom, and that each source file has its test file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hivemind_addon

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hivemind_addon"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MAY_IMPORT = {
    "core": {"core"},
    "profile": {"core", "profile", "resources"},
    "wire": {"core", "profile", "wire"},
    "runtime": {"core", "observe", "runtime", "words"},
    "observe": {"core", "observe", "words"},
    "capture": {"core", "capture", "words"},
    "resources": set(),
    "trust": set(),
    "words": set(),
    # The options, metrics and commands that it documents are declared in these.
    "docs": None,
    "page": set(),
    "mitm": {
        "core",
        "profile",
        "wire",
        "runtime",
        "observe",
        "journal",
        "checkpoint",
        "capture",
        "page",
        "resources",
        "trust",
        "words",
        "mitm",
        "compose",
    },
    "compose": {"core", "profile", "wire", "runtime", "observe", "journal", "resources", "words", "compose"},
    # Not `mitm`: a command must not take a second to load mitmproxy, which is another process's.
    "dash": {"core", "observe", "runtime", "words", "dash"},
    "launch": {"core", "profile", "wire", "runtime", "observe", "resources", "trust", "words", "launch"},
    "journal": {"core", "observe", "runtime", "words", "journal"},
    "checkpoint": {"core", "profile", "wire", "runtime", "words", "checkpoint"},
    "lease": {"runtime", "words", "lease"},
    "setup": {"launch", "runtime", "setup"},
    # Not `commands` and not `mitm`: agents start these, often.
    "tasks": {"core", "profile", "runtime", "observe", "launch", "words", "tasks"},
    "mcp": {
        "core",
        "wire",
        "runtime",
        "observe",
        "journal",
        "checkpoint",
        "lease",
        "launch",
        "tasks",
        "words",
        "mcp",
    },
    # Entry points.
    "__main__": None,
    "sim": None,
    "replay": None,
    "pytest_plugin": None,
    "evaluate": None,
    "cli": None,
    "commands": None,
}
"""What each folder or top-level file may import of ours; None: everything."""

ONLY_ENTRY_POINTS_IMPORT = {
    "docs",
    "launch",
    "setup",
    "sim",
    "replay",
    "evaluate",
    "pytest_plugin",
    "cli",
    "commands",
    "tasks",
    "mcp",
    "__main__",
}

UNTESTED = {
    "launch/port.py": "names",
    "core/ticket.py": "values; every test of core uses them",
    "core/decision.py": "values",
    "core/events.py": "values",
    "core/snapshot.py": "values",
    "observe/report.py": "values",
    "commands/index.py": "a table; test_group.py loads all of it, test_help.py asks each for its help",
    "journal/schema.py": "SQL; the writer's tests run it",
    "journal/records.py": "values",
    "checkpoint/model.py": "values and an interface",
    "lease/model.py": "values and an interface",
    "tasks/model.py": "values",
    "tasks/request.py": "values",
    "sim/call.py": "values",
    "profile/model.py": "values; their defaults and docstrings are held by test_typed.py and test_docs.py",
}
"""Source files without a test file of their own, and why."""


def room(path: Path) -> str:
    """The folder below the package, or the top-level file's name."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it; for `from a import b` both `a` and `a.b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


def ours(path: Path) -> set[str]:
    """The rooms that a file imports."""
    rooms = {room.name.removesuffix(".py") for room in PACKAGE.iterdir()}
    modules = (module.split(".") for module in imports(path))
    return {parts[1] for parts in modules if parts[0] == "hivemind_addon" and len(parts) > 1 and parts[1] in rooms}


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def files_of(folder: str) -> list[Path]:
    return [path for path in SOURCES if room(path) == folder]


def test_there_is_something_to_look_at():
    assert len(SOURCES) > 10
    assert "core" in ours(PACKAGE / "profile" / "model.py")


def test_the_tables_speak_of_what_is_there():
    rooms = {room(path) for path in SOURCES} - {"__init__"}
    assert set(MAY_IMPORT) == rooms
    assert rooms >= ONLY_ENTRY_POINTS_IMPORT
    assert {named(path) for path in SOURCES} >= set(UNTESTED)


def test_both_maps_name_every_folder_and_no_other():
    folders = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("\nImports run one way")[0]
    assert set(re.findall(r"^ {6}(\w+/) ", design, re.MULTILINE)) == folders
    assert set(re.findall(r"^ {4}(\w+/) ", hivemind_addon.__doc__ or "", re.MULTILINE)) == folders


def test_the_map_names_every_file_beside_the_folders():
    files = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert set(re.findall(r"^ {4}(\w+\.py) ", hivemind_addon.__doc__ or "", re.MULTILINE)) == files


@pytest.mark.parametrize("path", [p for p in SOURCES if p != PACKAGE / "__init__.py"], ids=named)
def test_imports_run_one_way(path):
    assert room(path) in MAY_IMPORT, f"say in MAY_IMPORT what {room(path)} may import"
    allowed = MAY_IMPORT[room(path)]
    if allowed is not None:
        assert ours(path) <= allowed


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_only_mitm_imports_mitmproxy(path):
    if room(path) != "mitm":
        assert not [module for module in imports(path) if module.split(".")[0] == "mitmproxy"]


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_nothing_imports_an_entry_point_but_another(path):
    if room(path) not in ONLY_ENTRY_POINTS_IMPORT:
        assert not ours(path) & ONLY_ENTRY_POINTS_IMPORT


@pytest.mark.parametrize("path", files_of("core"), ids=named)
def test_the_core_knows_no_clock_loop_or_log(path):
    forbidden = {"asyncio", "time", "datetime", "logging", "threading", "socket", "os"}
    assert not {module.split(".")[0] for module in imports(path)} & forbidden


@pytest.mark.parametrize("path", [*files_of("core"), *files_of("wire"), *files_of("profile")], ids=named)
def test_pure_rooms_use_no_randomness_but_what_is_passed(path):
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
    assert used <= {"Random"}


@pytest.mark.parametrize("path", [*files_of("wire"), *files_of("profile")], ids=named)
def test_wire_and_profile_fetch_no_time(path):
    assert not {module.split(".")[0] for module in imports(path)} & {"asyncio", "time", "logging"}


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name not in {"__init__.py", "__main__.py"}], ids=named)
def test_each_source_file_has_a_test_file(path):
    if named(path) not in UNTESTED:
        place = path.relative_to(PACKAGE)
        assert (ROOT / "tests" / place.parent / f"test_{place.name}").is_file()


def test_the_exceptions_are_still_there():
    assert [name for name in UNTESTED if not (PACKAGE / name).is_file()] == []
