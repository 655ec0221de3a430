from hivemind_addon.plugins.fleets.tasks.model import TaskSpec
from hivemind_addon.plugins.fleets.tasks.spec import command_line, problem
from hivemind_addon.tools.launch.programs import load_programs
from tests.cases import each

TABLE = load_programs()


def test_a_prompt_is_one_word_of_its_agents_command_line_whatever_is_in_it():
    prompt = "--help; rm -rf {prompt} $HOME"
    for kind in TABLE.kinds:
        line = command_line(TaskSpec(agent=kind, prompt=prompt), TABLE)
        assert next(word for word in line if prompt in word).removesuffix(prompt) in ("", "--prompt=", "--message=")
    assert command_line(TaskSpec(agent="claude-code", prompt="-x"), TABLE) == ["claude", "-p", "--", "-x"]


@each(
    ("changes", "says"),
    [
        ({"command": ()}, "command: there is nothing to run; add command, or agent (claude-code, codex"),
        ({"agent": "codex"}, "command: it has an agent or a prompt, too"),
        (
            {"command": (), "agent": "clippy", "prompt": "x"},
            "agent: 'clippy' is not known here; write one of claude",
        ),
        ({"command": (), "agent": "codex"}, "prompt: it is empty"),
        ({"command": ("", "x")}, "command: its first word is empty"),
        ({"command": ("a\0b",)}, "command: there is a NUL in it"),
        ({"command": ("a", "ä" * 70_000)}, "command: longer than 131,071 bytes; put it into a file"),
        ({"name": "../x"}, "name: '../x' is no name"),
        ({"name": "a.b"}, "name: 'a.b' is no name"),
        ({"group": "a b"}, "group: 'a b' is no group's name"),
        ({"priority": "urgent"}, "priority: 'urgent' is not known here; write one of critical, high"),
        ({"environment": {"A=B": "c"}}, "environment.A=B: this is no variable"),
        ({"timeout_s": 0}, "timeout_s: 0 is not above zero"),
        ({"timeout_s": float("nan")}, "timeout_s: nan is not above zero"),
        ({"budget_tokens": -1}, "budget_tokens: -1 is not above zero"),
        ({"retries": -1}, "retries: -1 is too many or too few"),
    ],
)
def test_what_cannot_be_run_names_key_and_cure(changes, says):
    assert says in str(problem(TaskSpec(**{"command": ("true",)} | changes), TABLE))


def test_a_good_one_has_no_problem():
    assert problem(TaskSpec(command=("true",), name="a-1_B", environment={"A": "b"}, timeout_s=0.5), TABLE) is None
