"""The house rules that a parser can hold: which part may import which, and what the pure rooms keep away from."""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import hivemind_addon

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hivemind_addon"
SOURCES = sorted(PACKAGE.rglob("*.py"))

PACKAGES = {
    "kernel": set[str](),
    "formats": {"kernel"},
    "proxy": {"kernel", "formats"},
    "tools": {"kernel", "formats", "proxy"},
    "plugins": {"kernel", "formats", "proxy", "tools"},
    "sim": {"kernel", "formats", "proxy", "tools", "plugins"},
    "lab": {"sim"},
}
"""Each package, and the packages that its files may import. `lab` in here is the public name of the pytest plug-in."""

INSIDE = {
    "formats": {"base": set[str](), "profile": {"base"}, "wire": {"base", "profile"}},
    "proxy": {
        "system": set[str](),
        "api": {"system"},
        "page": set[str](),
        "record": {"api"},
        "run": {"api", "record", "system"},
        "journal": {"api", "run", "system"},
        "host": set[str](),
        "gate": {"api", "host", "journal", "page", "record", "run", "system"},
    },
    "plugins": {"cluster": set[str](), "captures": set[str](), "contexts": {"captures"}, "fleets": set[str]()},
}
"""The same for the packages inside a package."""

PLUGINS_KNOWN_TO = {
    "proxy/gate/exchange.py": {"captures", "contexts"},
    "proxy/gate/intake.py": {"contexts"},
    "proxy/gate/options.py": {"contexts"},
    "proxy/gate/settings.py": {"contexts"},
    "proxy/gate/written_files.py": {"captures", "contexts"},
    "tools/commands/mcp.py": {"fleets"},
    "tools/commands/page_answer.py": {"fleets"},
    "tools/mcp/past.py": {"contexts"},
    "tools/mcp/server.py": {"contexts", "fleets"},
    "tools/mcp/session.py": {"contexts", "fleets"},
    "tools/mcp/tools.py": {"contexts", "fleets"},
}
"""Files that name a plug-in although plug-ins are above them, until plug-ins have an interface."""

TOOLS_SEE = {
    "proxy.api",
    "proxy.system",
    # Its files.
    "proxy.journal.file",
    "proxy.journal.schema",
    "proxy.journal.tables",
    # `doctor` sends a test alert.
    "proxy.run.alerts",
}
"""The tools run in processes of their own: these are the modules of the proxy that they import."""

MITMPROXY = (
    "proxy/gate/",
    "proxy/host/",
    # They read and write mitmproxy's flow files.
    "plugins/captures/",
    # They read and edit a flow's request, until plug-ins have an interface.
    "plugins/contexts/compactor.py",
    "plugins/contexts/handover.py",
    # It makes certificates as the proxy does.
    "sim/certificate.py",
)
"""The importers of mitmproxy."""


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


def test_packages_import_one_way():
    def strangers(package: str, path: Path) -> set[str]:
        allowed = {package, *PACKAGES[package]}
        known = PLUGINS_KNOWN_TO.get(named(path), set())
        return {
            module
            for module in ours(path)
            if module.split(".")[0] not in allowed
            and not (module.split(".")[0] == "plugins" and module.split(".")[1] in known)
        }

    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()} == set(PACKAGES)
    for package in PACKAGES:
        assert not offenders(f"{package}/", lambda path, package=package: strangers(package, path))


def test_packages_inside_a_package_import_one_way():
    def strangers(package: str, inside: str, path: Path) -> set[str]:
        found = {module.split(".")[1] for module in ours(path) if module.startswith(f"{package}.")}
        return found - INSIDE[package][inside] - {inside}

    for package, folders in INSIDE.items():
        assert {path.name for path in (PACKAGE / package).iterdir() if path.name[0] != "_"} == set(folders)
        for inside in folders:
            assert not offenders(f"{package}/{inside}/", lambda path, p=package, i=inside: strangers(p, i, path))


def test_every_exception_is_needed():
    for name, plugins in PLUGINS_KNOWN_TO.items():
        known = {module.split(".")[1] for module in ours(PACKAGE / name) if module.startswith("plugins.")}
        assert known == plugins, name
    used = {module for path in SOURCES if named(path).startswith("tools/") for module in ours(path)}
    for door in TOOLS_SEE:
        assert any(module == door or module.startswith(f"{door}.") for module in used), door


def test_tools_know_the_proxy_by_its_api_and_its_files():
    def strangers(path: Path) -> set[str]:
        seen = {module for module in ours(path) if module.startswith("proxy.")}
        return {module for module in seen if module not in TOOLS_SEE and module.rpartition(".")[0] not in TOOLS_SEE}

    assert not offenders("tools/", strangers)


def test_the_kernel_imports_msgspec_and_the_standard_library_only():
    allowed = {"msgspec", "hivemind_addon", *sys.stdlib_module_names}
    assert not offenders("kernel/", lambda path: {module.split(".")[0] for module in imports(path)} - allowed)


def test_the_product_imports_nothing_of_the_lab():
    assert not offenders("", lambda path: [module for module in imports(path) if module.split(".")[0] == "lab"])


def test_only_the_host_s_packages_import_mitmproxy():
    def strange(path: Path) -> list[str]:
        if named(path).startswith(MITMPROXY):
            return []
        return [module for module in imports(path) if module.split(".")[0] == "mitmproxy"]

    assert not offenders("", strange)


def test_the_kernel_and_the_formats_know_no_clock_loop_or_log():
    forbidden = {"asyncio", "time", "datetime", "logging", "threading", "socket", "os"}
    for folder in ("kernel/", "formats/"):
        known = forbidden - ({"os", "datetime"} if folder == "formats/" else set())
        assert not offenders(folder, lambda path, known=known: {m.split(".")[0] for m in imports(path)} & known)


def test_pure_packages_use_no_randomness_but_what_is_passed():
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

    for folder in ("kernel/", "formats/"):
        assert not offenders(folder, random_names)


OWN_DECODERS = {
    "formats/base/json_values.py",
    *(f"formats/wire/{name}.py" for name in ("envelope", "request")),
}


def test_foreign_bytes_are_decoded_in_one_place():
    """The decoders of msgspec raise UnicodeDecodeError and RecursionError as well, which callers do not expect."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        if re.search(r"msgspec\.(json|msgpack)\.[dD]ecode", path.read_text(encoding="utf-8"))
    }
    assert {name for name in found if not name.startswith(("kernel/", "sim/"))} == OWN_DECODERS


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
