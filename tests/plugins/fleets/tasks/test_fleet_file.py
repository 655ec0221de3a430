import re
import textwrap
from pathlib import Path
from typing import get_type_hints

import pytest

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.plugins.fleets.tasks.fleet_file import FleetFile, load_batch, load_fleet
from hivemind_addon.plugins.fleets.tasks.model import TaskSpec
from hivemind_addon.tools.launch.programs import load_programs
from tests.cases import each

TABLE = load_programs()


@pytest.fixture
def fleet(tmp_path):
    def load(text):
        file = tmp_path / "night.yaml"
        file.write_text(textwrap.dedent(text))
        return load_fleet(file, TABLE)

    return load


def test_a_file_becomes_rules_and_tasks(fleet, tmp_path):
    read = fleet("""
        at_most: 5
        groups: {reviewers: {workers: 2}}
        steal_above: null
        defaults: {retries: 4, environment: {A: "1", B: "1"}}
        tasks:
          plan: {command: "make 'two words'", priority: high, directory: sub}
          review: {agent: claude-code, prompt: look, group: reviewers, depends_on: [plan], environment: {B: "2"}}
    """)
    assert (read.rules.at_most, read.rules.groups, read.rules.steal_above) == (5, {"reviewers": 2}, None)
    plan, review = read.specs
    assert plan.command == ("make", "two words")
    assert (plan.retries, plan.directory, plan.name) == (4, str(tmp_path / "sub"), "plan")
    assert (review.agent, review.depends_on, review.environment) == ("claude-code", ("plan",), {"A": "1", "B": "2"})


def test_a_command_takes_the_place_of_the_agent_that_all_have(fleet):
    read = fleet("""
        defaults: {agent: codex}
        tasks:
          a: {prompt: fix it}
          b: {command: [make]}
    """)
    assert [(one.agent, one.command) for one in read.specs] == [("codex", ()), ("", ("make",))]


@each(
    ("text", "says"),
    [
        ("tasks: {a: {comand: x}}", "tasks.a.comand: unknown key; did you mean command?"),
        ("task: {}", "task: unknown key; did you mean tasks?"),
        ("tasks: {}", "tasks: there are none"),
        ("at_most: 2", "tasks: there are none"),
        ("tasks: [x]", "tasks: expected a mapping, got a list"),
        ("tasks: {a: make}", "tasks.a: expected a mapping, got 'make'"),
        ('tasks: {a: {command: "it\'s"}}', "tasks.a.command: no closing quotation; quote it"),
        ("tasks: {a: {command: 7}}", "tasks.a.command: expected a list, got 7"),
        ("tasks: {a: {name: b, command: x}}", "tasks.a.name: unknown key"),
        ("tasks: {'a b': {command: x}}", "tasks.a b: 'a b' is no name"),
        ("tasks: {a: {command: x, priority: urgent}}", "tasks.a.priority: 'urgent' is not known here"),
        ("tasks: {a: {command: x, depends_on: [b]}}", "tasks.a.depends_on[0]: there is no task 'b'; known: none"),
        (
            "tasks: {a: {command: x, depends_on: [b]}, b: {command: x, depends_on: [a]}}",
            "tasks.a.depends_on: a circle: a → b → a; take one of these dependencies out",
        ),
        ("tasks: {a: {command: x, environment: {N: 1}}}", "tasks.a.environment.N: expected a text, got 1"),
        (
            "tasks: {a: {command: x, group: g}}",
            "tasks.a.group: there is no group 'g'; known: none; add it to groups",
        ),
        ("at_most: 0\ntasks: {a: {command: x}}", "at_most: 0 is not above zero"),
        (
            "at_most: 1\ngroups: {g: {workers: 2}}\ntasks: {a: {command: x}}",
            "groups: their 2 workers are more than at_",
        ),
        (
            "at_most: 1\ngroups: {g: {workers: 1}}\ntasks: {a: {command: x}}",
            "tasks.a.group: the groups have all 1 pla",
        ),
        (
            "defaults: {depends_on: [a]}\ntasks: {a: {command: x}}",
            "defaults.depends_on: every task would depend on it",
        ),
        ("defaults: {retrys: 1}\ntasks: {a: {command: x}}", "defaults.retrys: unknown key; did you mean retries?"),
        ("tasks: {a: {command: x}, a: {command: y}}", "the key a stands twice"),
        ("tasks: {a: {agent: codex}}", "tasks.a.prompt: it is empty"),
        ("", "it is empty; write tasks: with a command for each"),
    ],
)
def test_what_is_wrong_names_file_key_and_cure(fleet, tmp_path, text, says):
    with pytest.raises(DocumentError) as wrong:
        fleet(text)
    assert str(wrong.value).startswith(str(tmp_path / "night.yaml"))
    assert says in str(wrong.value)
    assert "\n" not in str(wrong.value)


def batch(text):
    return load_batch(text, "-", TABLE)


def test_a_batch_is_lines_of_json_or_a_yaml_list():
    lines = batch(
        '{"name": "a", "command": "echo x"}\n\n{"command": ["echo"], "depends_on": ["a", "running-already"]}\n'
    )
    assert [(one.name, one.command) for one in lines] == [("a", ("echo", "x")), ("", ("echo",))]
    assert batch("- {agent: codex, prompt: fix}")[0].agent == "codex"


@each(
    ("text", "says"),
    [
        ("", "-: there is no list of tasks"),
        ("[]", "there is no list of tasks"),
        ("tasks: {a: {command: x}}", "a fleet file is run by hivemind fleet run"),
        ('{"command": "x"}\n{"command": }', "-: [1]: no JSON"),
        ('{"command": "x"}\n{"comand": "x"}', "-: [1].comand: unknown key"),
        ("- {command: x, timeout_s: 0}", "-: [0].timeout_s: 0 is not above zero"),
        ("- {command: x, name: a}\n- {command: x, name: a}", "two are named 'a'"),
        ("- {command: x}\n- {command: x, name: a, depends_on: [a]}", "-: [1].depends_on: a circle: a → a"),
        ("- {command: [", "correct the YAML"),
    ],
)
def test_what_is_wrong_with_a_batch_names_the_item(text, says):
    with pytest.raises(DocumentError) as wrong:
        batch(text)
    assert says in str(wrong.value)


PAGE = (Path(__file__).parents[4] / "docs" / "fleet-files.md").read_text()


def test_the_pages_example_can_be_run(fleet):
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    read = fleet(example)
    assert [one.name for one in read.specs] == ["plan", "build", "test", "review"]


def test_the_page_names_every_key_and_what_it_is_without():
    for cls in (FleetFile, TaskSpec):
        for one in get_type_hints(cls):
            assert one == "name" or f"`{one}`" in PAGE
    usual = FleetFile()
    for key in ("at_most", "start_every_s", "steal_above"):
        assert re.search(rf"\| `{key}` \|.*\| {getattr(usual, key):g} \|", PAGE)
    assert f"| {TaskSpec().retries} |" in PAGE
