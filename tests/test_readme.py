"""Every line that the README and docs/ tell people to type: its options are there, and so are make's targets."""

import re
from pathlib import Path

import click
import pytest

from hivemind_addon.tools.cli import main
from tests.shell_lines import accept, blocks, calls

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = ROOT / "docs" / "cli.md"
"""Help texts; tests/tools/commands/test_help.py has them."""
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
_NAMES_OURS = re.compile(r"\b(hivemind|make)\b")


@pytest.fixture(autouse=True)
def no_files(monkeypatch):
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, _param, _ctx: Path(value))


def typed(page):
    """What people are told to type: line, program, arguments."""
    for number, line in blocks(page):
        try:
            found = list(calls(line))
        except ValueError:
            assert not re.match(r"(\$ )?(hivemind|make) ", line), f"{page.name}:{number}: quotes stay open: {line}"
            continue
        yield from ((number, name, arguments) for name, *arguments in found)


def test_what_is_to_be_typed_can_be():
    offenders = []
    for page in PAGES:
        if page == GENERATED:
            continue
        for number, name, arguments in typed(page):
            if name == "hivemind" and arguments:
                try:
                    accept(main, arguments)
                except click.UsageError as error:
                    line = f"hivemind {' '.join(arguments)}: {error.format_message()}"
                    offenders.append(f"{page.name}:{number}: {line}")
            elif name == "make" and not set(arguments) <= TARGETS:
                offenders.append(f"{page.name}:{number}: make {' '.join(arguments)}")
    assert offenders == []


def test_the_readme_has_lines_to_type():
    found = [(name, *arguments) for _, name, arguments in typed(ROOT / "README.md")]
    assert ("make", "demo") in found
    assert any(call[:2] == ("hivemind", "exec") for call in found)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
