import re
from dataclasses import dataclass, fields
from enum import Enum
from typing import get_args

import pytest

from hivemind_addon.formats.base.typed import INHERITED
from hivemind_addon.formats.profile.grants import AgentGrants, AgentRules, Allowance, Grants
from hivemind_addon.formats.profile.model import Profile
from hivemind_addon.kernel.order.entry import TRANSITIONS, EntryState
from hivemind_addon.kernel.values.events import SCHEMA_VERSION, Event
from hivemind_addon.proxy.record.metrics import MAX_POOLS
from hivemind_addon.proxy.run.option_table import OPTIONS
from hivemind_addon.sim.library import SCENARIO_RULES, ScenarioFile
from lab.generators import docs
from lab.generators.docstrings import field_docstrings
from lab.generators.schemas import DOCUMENTS
from lab.markdown import markdown_filled
from tests.cases import each

SELF_EXPLAINING = {"concurrency.maximum", "breaker.max_probe_s", "retry.max_backoff_s"}
"""The upper ends of ranges whose lower end, the line above in the table, is explained."""


class Colour(Enum):
    RED = "red"
    """Stop."""
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample."""

    needed: str
    """Has a | bar,
    and two lines."""
    colour: Colour = Colour.RED
    names: tuple[str, ...] = ("a", "b")
    flag: bool = False


def test_the_generated_pages_are_fresh():
    assert docs.check() == []


def test_a_stale_page_is_named_and_written_again(tmp_path, monkeypatch):
    ours = {page: page.read_text() for page in docs.generate()}
    samples = docs._CHECKOUT / "tests" / "formats" / "wire" / "data"
    here = {tmp_path / page.relative_to(docs._CHECKOUT): text for page, text in ours.items()}
    for page, text in here.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(re.sub(r"(?m)^\| .*\n(?=\n<!-- end -->)", "", text) if page.suffix == ".md" else "{}")
    for file in (*samples.glob("*/samples.yaml"), *(docs._CHECKOUT / "docs" / "decisions").glob("[0-9]*.md")):
        copy = tmp_path / file.relative_to(docs._CHECKOUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    monkeypatch.setattr(docs, "_CHECKOUT", tmp_path)
    stale = docs.check()
    assert {"docs/options.md", "docs/tools.md", "docs/design.md", "docs/providers.md", "docs/mcp.md"} <= set(stale)
    assert {f"src/hivemind_addon/data/schemas/{name}.json" for name in (*DOCUMENTS, "config")} <= set(stale)
    assert docs.write() == [tmp_path / name for name in stale]
    assert {page: page.read_text() for page in here} == here


def test_a_page_without_a_mark_is_named():
    with pytest.raises(AssertionError, match="no part 'keys'"):
        markdown_filled("# Agents\n", {"keys": ""})


def test_numbers_and_words_of_the_code_stand_in_the_hand_written_parts():
    pages = {name: (docs._CHECKOUT / "docs" / f"{name}.md").read_text() for name in ("metrics", "events", "profiles")}
    assert f"first {MAX_POOLS} of a run" in pages["metrics"]
    assert f"(schema v{SCHEMA_VERSION})" in pages["events"]
    assert f'{{"v":{SCHEMA_VERSION},' in pages["events"]
    assert f"`{INHERITED}`" in pages["profiles"]


def test_every_profile_field_is_documented():
    classes = {"": Profile, **{f"{keys[0]}.": cls for cls, keys in docs._nested(Profile).items()}}
    undocumented = {
        f"{prefix}{field.name}"
        for prefix, cls in classes.items()
        for field in fields(cls)
        if field.name not in field_docstrings(cls)
    }
    assert undocumented <= SELF_EXPLAINING


@each("document", [Profile, ScenarioFile])
def test_every_key_stands_in_the_page_with_a_meaning(document):
    page = docs._keys(document, "a document")
    for cls in (document, *docs._nested(document)):
        for field in fields(cls):
            if field.name not in SCENARIO_RULES.unwritten.get(cls, ()):
                assert f"| `{field.name}` |" in page
                assert document is Profile or field.name in field_docstrings(cls), f"{cls.__name__}.{field.name}"


def test_every_key_of_the_agents_file_is_documented():
    page = docs._agents()
    for cls in (AgentRules, Grants, AgentGrants, Allowance):
        for field in fields(cls):
            assert f"| `{field.name}` |" in page
    for word in ("`run`", "`day`", "`critical`"):
        assert f"- {word}" in page


def test_every_option_stands_in_the_page_with_its_help():
    page = docs._options()
    for option in OPTIONS:
        assert f"| `{option.name}` |" in page
        assert f"| {option.help} |" in page


def test_the_name_of_a_profile_is_no_key_of_its_file():
    assert "| `name` |" not in docs.render_fields(Profile)


def test_a_dataclass_becomes_a_table_with_types_defaults_and_docstrings():
    assert docs.render_fields(Sample) == (
        "| Key | Value | Default | Meaning |\n"
        "| --- | --- | --- | --- |\n"
        "| `needed` | text | required | Has a \\| bar, and two lines. |\n"
        "| `colour` | one of [Colour](#colour) | `red` |  |\n"
        "| `names` | list of texts | `a`, `b` |  |\n"
        "| `flag` | true or false | `false` |  |\n"
    )


def test_members_of_an_enum_have_docstrings_too():
    assert field_docstrings(Colour) == {"RED": "Stop."}


def test_every_event_and_every_value_in_it_has_its_table():
    page = docs.generate()[docs._CHECKOUT / "docs" / "events.md"]
    for name in ("Submitted", "GuardTripped", "PoolKey", "Ticket", "Demand", "Outcome", "Usage", "Budget", "Price"):
        assert f"### {name}\n" in page
    assert "| `pool` | [PoolKey](#poolkey) or null |" in page
    assert "| `usage` | [Usage](#usage) or null |" in page
    assert "| `budgets` | list of [Budget](#budget) |" in page


def test_every_event_says_what_it_means():
    assert [kind.__name__ for kind in get_args(Event) if not kind.__doc__] == []


def test_the_glossary_is_short_sorted_and_names_what_there_is():
    page = (docs._CHECKOUT / "docs" / "glossary.md").read_text(encoding="utf-8").partition("\n## States\n")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    terms = [row[0] for row in rows[2:]]
    assert terms == sorted(terms)
    assert len(terms) <= 44
    package = docs._CHECKOUT / "src" / "hivemind_addon"
    classes = set(re.findall(r"^class (\w+)", "\n".join(p.read_text() for p in package.rglob("*.py")), re.MULTILINE))
    places = [place for row in rows[2:] for place in re.findall("`([^`]+)`", row[2])]
    assert [place for place in places if not (package / place).exists() and place not in classes] == []


def test_the_design_lists_every_state_of_a_ticket_and_what_may_follow():
    page = docs._states()
    picture, _, table = page.partition("| State |")
    assert [state.name for state in EntryState if state.name not in picture] == []
    rows = {row[1].strip(): row[3].strip() for row in (line.split("|") for line in table.splitlines()) if len(row) == 5}
    assert rows["unfunded"] == "any that waits, new, ended"
    assert rows["in flight"] == "due, backing off, ended"
    assert {name for name, after in rows.items() if not after} == {"ended"}
    assert {state.value for state in TRANSITIONS} <= set(rows)


def test_decisions_have_a_number_a_date_and_three_parts():
    records = sorted((docs._CHECKOUT / "docs" / "decisions").glob("[0-9]*.md"))
    form = re.compile(
        r"# (\d+)\. .+\n\n\d{4}-\d\d-\d\d, .+\.\n\n\*\*Decision\.\*\* .+\n\n\*\*Why\.\*\* .+\n\n\*\*Price\.\*\* .+\n",
        re.DOTALL,
    )
    found = {record.name: form.fullmatch(record.read_text(encoding="utf-8")) for record in records}
    assert [name for name, match in found.items() if match is None or int(match[1]) != int(name[:4])] == []
    assert [int(name[:4]) for name in found] == list(range(1, len(records) + 1))


def test_files_that_pages_for_developers_name_are_there():
    folder, package = docs._CHECKOUT / "docs", docs._CHECKOUT / "src" / "hivemind_addon"
    lost = [
        f"{page.name}: {place}"
        for page in (folder / "design.md", folder / "first-hour.md", *(folder / "decisions").glob("*.md"))
        for place in re.findall(
            r"`((?:kernel|formats|proxy|tools|plugins|sim|lab|tests)/[\w/.]*)`", page.read_text(encoding="utf-8")
        )
        if not ((docs._CHECKOUT if place.startswith(("lab/", "tests/")) else package) / place).exists()
    ]
    assert lost == []
