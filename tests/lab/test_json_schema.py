import copy
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hivemind_addon.formats.base.document import read_yaml
from hivemind_addon.formats.base.resources import formats_folder, profiles_folder, scenarios_folder, schemas_folder
from hivemind_addon.formats.base.typed import DocumentError, DocumentRules, convert
from hivemind_addon.formats.profile.formats import whole_format
from lab.generators.json_schema import DocumentKind, json_schema
from lab.generators.schemas import DOCUMENTS
from tests.cases import each

ROOT = Path(__file__).parents[2]
FLEET = """
at_most: 3
groups: {builders: {workers: 1}}
defaults: {agent: codex, timeout_s: 600, environment: {A: b}}
tasks:
  one: {prompt: say hello, budget_usd: 0.5}
  two: {command: make test, depends_on: [one], group: builders, estimated_tokens: 100}
"""
BATCH = "[{command: make test, name: a}, {agent: codex, prompt: hello, depends_on: [a]}]"
AGENTS = """
everyone: {budgets: [{usd: 100, per: day}]}
groups: {reviewers: {budgets: [{usd: 20}], max_priority: high}}
agents: {"rev-*": {group: reviewers, budgets: [{tokens: 5000000, per: hour}]}, lead: {max_priority: critical, weight: 2}}
"""
PROFILE = """
hosts: [api.example.com]
paths: ["/*"]
format: {extends: openai-chat, usage: {input: [/in]}, says: [{at: /text}], framing: {application/x-ndjson: ndjson}}
formats: {"*/messages": anthropic, "*/x": {extends: gemini, envelope: {at: x}, error: {at: [/wait]}}}
meters: [{meter: r, dimension: requests, limit: x-limit, remaining: x-left, window_s: 60}]
outcomes: [{kind: ignored, retry: false, status: [402], headers: {x-a: b}, retry_after: null}]
calls: [{kind: turn, tools: true, max_messages: 2}]
prices: {"*": {input: 1, output: 2.5}}
patience: {clients: {"codex*": 1800}}
delivery: whole
"""
PLACES = """
extends: openai
account: [{path: "/projects/([^/]+)/"}, "query#key", {header: x-org, member: id}, inherited]
sign: {header: x-amz-date}
"""
EXTENSION = """
extends: openai
calls: [{kind: turn}, inherited]
session_headers: [x-mine, inherited]
format: {events: {done: bye}}
concurrency: {initial: 2}
"""


def packaged():
    for name, folder in (
        ("profile", profiles_folder()),
        ("format", formats_folder()),
        ("scenario", scenarios_folder()),
    ):
        for file in sorted(folder.glob("*.yaml")):
            yield name, file.stem, file.read_text(encoding="utf-8")
    yield "programs", "agents", (ROOT / "src/hivemind_addon/tools/launch/agents.yaml").read_text(encoding="utf-8")


def in_pages(page):
    return re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


OURS = [
    *packaged(),
    ("fleet", "ours", FLEET),
    ("batch", "ours", BATCH),
    ("agents", "ours", AGENTS),
    ("profile", "ours", PROFILE),
    ("profile", "extension", EXTENSION),
    ("profile", "places", PLACES),
    *(("profile", f"page {n}", text) for n, text in enumerate(in_pages("profiles.md"))),
    *(("profile", f"upstreams {n}", text) for n, text in enumerate(in_pages("upstreams.md")) if "upstreams:" in text),
    *(("agents", f"page {n}", text) for n, text in enumerate(in_pages("agents.md"))),
    *(("fleet", f"page {n}", text) for n, text in enumerate(in_pages("fleet-files.md")) if "tasks:" in text),
]
NO_TYPE = ("is no range", "names no place, or several", "only a header has a member", "searched already")
"""What is wrong with values that do not fit together."""
READ = [(name, read_yaml(text, Path(file))) for name, file, text in OURS]
VALIDATORS = {name: Draft202012Validator(json_schema(kind)) for name, kind in DOCUMENTS.items()}


def complaint(name, document):
    return next((error.message for error in VALIDATORS[name].iter_errors(document)), None)


def test_every_file_of_ours_is_valid(subtests):
    assert {name for name, _, _ in OURS} == set(DOCUMENTS)
    for name, file, text in OURS:
        with subtests.test(kind=name, file=file):
            assert complaint(name, read_yaml(text, Path(file))) is None


def test_the_packaged_schemas_are_schemas_and_fresh():
    for name, kind in DOCUMENTS.items():
        written = json.loads((schemas_folder() / f"{name}.json").read_text(encoding="utf-8"))
        Draft202012Validator.check_schema(written)
        assert written == json.loads(json.dumps(json_schema(kind)))


def type_error(name, document):
    """What `typed.py` has against the types of a document, without the rules for its values."""
    kind, file = DOCUMENTS[name], Path("my.yaml")
    # What a text stands for, rules say.
    texts = {one: lambda _: {"header": "x"} for one in kind.rules.texts}
    rules = DocumentRules(unwritten=kind.rules.unwritten, texts=texts)
    try:
        if kind.is_list:
            if not isinstance(document, list) or not document:
                return "no list"
            for one in document:
                convert(kind.cls, split(one), file, rules=rules)
            return None
        keys = dict(document)
        if name == "fleet":
            keys["defaults"] = split(keys.get("defaults", {}))
            if isinstance(tasks := keys.get("tasks"), dict):
                keys["tasks"] = {key: split(task) for key, task in tasks.items()}
        extends = keys.pop("extends", None) if kind.extends else None
        if kind.extends and "extends" in document and not isinstance(extends, str):
            return "extends"
        if name == "profile":
            if "format" in keys:
                keys["format"] = whole_format(keys["format"], file, "format")
            if isinstance(formats := keys.get("formats"), dict):
                keys["formats"] = {glob: whole_format(one, file, glob) for glob, one in formats.items()}
        convert(kind.cls, keys, file, rules=rules, partial=extends is not None)
    except DocumentError as error:
        assume(not any(words in str(error) for words in NO_TYPE))
        return str(error)
    return None


def split(task):
    if isinstance(task, dict) and isinstance(task.get("command"), str):
        return task | {"command": task["command"].split()}
    return task


def places(value, at=()):
    """Every value within a document, by the keys that lead to it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*at, key)
        yield from places(one, (*at, key))


STRANGE = st.sampled_from(
    [None, True, False, "zzz", "", 7, 2.5, -1, 10**16, [], ["zzz"], [7], [None], {}, {"zzz": 1}, {"extends": "gemini"}]
)


@st.composite
def mutated(draw):
    """A document of ours with one thing changed: a value, a key that is missing, or one too many."""
    name, document = copy.deepcopy(draw(st.sampled_from(READ)))
    *way, key = draw(st.sampled_from(list(places(document))))
    inner = document
    for step in way:
        inner = inner[step]
    match draw(st.sampled_from(["value", "less", "more"])):
        case "value":
            inner[key] = draw(STRANGE)
        case "less":
            del inner[key]
        case "more" if isinstance(inner, dict):
            inner["unheard_of"] = draw(STRANGE)
        case _:
            inner.append(draw(STRANGE))
    return name, document


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_what_is_refused_for_its_type_is_refused_by_the_schema(changed):
    name, document = changed
    if (said := type_error(name, document)) is not None:
        assert complaint(name, document) is not None, said


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_the_schema_refuses_nothing_that_is_taken(changed):
    name, document = changed
    if type_error(name, document) is None:
        assert complaint(name, document) is None


@dataclass(frozen=True)
class Inner:
    """Inner."""

    needed: float
    """Has to
    be there."""


@dataclass(frozen=True)
class Outer(Inner):
    """Outer."""

    ones: tuple[Inner, ...] = ()
    span: tuple[float, float] = (1, 2)
    maybe: int | None = None
    names: dict[str, str] = field(default_factory=dict, init=False)


def test_docstrings_defaults_and_required_keys_are_told():
    kind = DocumentKind("T", Outer, DocumentRules(unwritten={Outer: frozenset({"names"})}), extends="What it changes.")
    schema = json_schema(kind)
    assert schema["required"] == ["needed"]
    assert schema["additionalProperties"] is False
    number = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e15}
    assert schema["properties"]["needed"] == number | {"description": "Has to be there."}
    assert schema["properties"]["span"]["prefixItems"] == [number, number]
    assert schema["properties"]["span"]["default"] == [1, 2]
    assert schema["properties"]["extends"] == {"type": "string", "description": "What it changes."}
    assert schema["properties"]["maybe"]["anyOf"][1] == {"type": "null"}
    assert schema["$defs"]["Inner"]["description"] == "Inner."


@each(
    ("document", "valid"),
    [
        ({"extends": "openai", "outcomes": ["inherited"]}, True),
        ({"outcomes": ["inherited"]}, False),
        ({"name": "mine"}, False),
        ({"format": "no-such"}, False),
        ({"watchdog": {"silent_s": 0}}, False),
        ({"delivery": "fast"}, False),
    ],
)
def test_an_editor_is_told_what_a_profile_may_say(document, valid):
    assert (complaint("profile", document) is None) is valid
