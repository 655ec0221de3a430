"""Every line that the README and docs/ tell people to type: its options are there, and so are make's targets."""

import re
from pathlib import Path

import click
import pytest
import yaml

from hivemind_addon.tools.cli import main
from tests.shell_lines import accept, blocks, calls

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = ROOT / "docs" / "cli.md"
"""Help texts; tests/tools/commands/test_help.py has them."""
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
_NAMES_OURS = re.compile(r"\b(hivemind|make)\b")


@pytest.fixture(autouse=True)
def no_files(monkeypatch, tmp_path):
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, _param, _ctx: Path(value))
    (tmp_path / "mine.py").write_bytes((ROOT / "examples" / "policies" / "minimal.py").read_bytes())
    monkeypatch.chdir(tmp_path)


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


def test_the_readme_is_read_in_two_minutes_and_has_the_first_lines_to_type():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 400
    found = [(name, *arguments) for _, name, arguments in typed(ROOT / "README.md")]
    assert ("hivemind", "demo", "--watch") in found
    assert ("hivemind", "exec", "--", "claude") in found
    assert all(f"`{line}`" in readme for line in ("make demo", "make test"))


def test_links_between_pages_lead_somewhere():
    """Pages, pictures, and the headings that they name."""
    broken = []
    for page in PAGES:
        for target in _links(page.read_text(encoding="utf-8")):
            path, _, heading = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                broken.append(f"{page.name}: {target}: there is no such file")
            elif ROOT / "docs" in page.parents and ROOT / "docs" not in file.parents:
                broken.append(f"{page.name}: {target}: the site does not have it")
            elif heading and file.suffix == ".md" and heading not in _headings(file.read_text(encoding="utf-8")):
                broken.append(f"{page.name}: {target}: there is no such heading")
    assert broken == []


def test_every_page_is_in_the_site_and_nothing_else():
    site = yaml.safe_load((ROOT / "lab" / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(_listed(site["nav"]))
    docs = ROOT / "docs"
    assert sorted(listed) == sorted({*(page.name for page in docs.glob("*.md")), "decisions/README.md"})
    decisions = (docs / "decisions" / "README.md").read_text(encoding="utf-8")
    assert all(f"({page.name})" in decisions for page in (docs / "decisions").glob("0*.md"))


def _links(text):
    """Where a page's links and pictures lead; what is code is none."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "", prose)
    return re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", prose)


def _headings(text):
    """What a page's headings are called in addresses, on GitHub and in the site."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+?)\s*$", prose, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).strip().lower().replace(" ", "-")
        for title in titles
    }


def _listed(nav):
    """The pages of the site's navigation."""
    for one in nav:
        for inner in one.values() if isinstance(one, dict) else [one]:
            yield from [inner] if isinstance(inner, str) else _listed(inner)
