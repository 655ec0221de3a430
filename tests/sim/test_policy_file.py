"""Policies that users write: the examples, and every way to get a policy wrong, named by file, line, method and cure."""

import pickle
import re

import pytest
from click.testing import CliRunner

from hivemind_addon.sim.library import case_named, cases
from hivemind_addon.sim.policy import EXAMPLES, Policy, policy_named
from hivemind_addon.sim.policy_file import PolicyFault, UnknownPolicy
from hivemind_addon.sim.trial import Setup, run_series
from hivemind_addon.sim.world import run
from hivemind_addon.tools.cli import main
from tests.cases import each

MINIMAL = (EXAMPLES / "minimal.py").read_text(encoding="utf-8")
WAKES = "return self.opens_at if self.waiting and self.opens_at > self.now else None"
ADMITS = "go.append(Admitted(Attempt(ticket, number, now)))"
CANCELS = "    def cancel(self, ticket_id, now):\n        return self.waiting.pop(ticket_id, None) is not None\n"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes mine.py: the minimal policy with replaced parts."""
    monkeypatch.chdir(tmp_path)

    def write(*replaced):
        text = MINIMAL
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "mine.py").write_text(text, encoding="utf-8")
        return "mine.py:Minimal"

    return write


def test_the_examples_are_short_and_need_nothing_of_ours_but_values():
    most = {"minimal.py": 40, "baseline.py": 300}
    for file in EXAMPLES.glob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= most.get(file.name, 250)
        assert {*re.findall(r"hivemind_addon\.[\w.]+", text)} <= {
            "hivemind_addon.kernel.values.decision",
            "hivemind_addon.kernel.values.ticket",
        }


def test_the_page_shows_the_minimal_policy_and_a_world_of_ten_lines(tmp_path):
    page = (EXAMPLES.parents[1] / "docs" / "judge.md").read_text(encoding="utf-8")
    assert f"```python\n{MINIMAL}```" in page
    (world,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(world.splitlines()) <= 10
    (tmp_path / "night.yaml").write_text(world)
    scenario = case_named(str(tmp_path / "night.yaml")).scenario
    lost = {name: run(scenario, seed=0, policy=policy_named(name)).lost for name in ("direct", "baseline", "hivemind")}
    assert lost["direct"] > lost["baseline"] == lost["hivemind"] == 0


def test_the_baseline_loses_nobody_where_the_field_loses_many_and_is_refused_little():
    loads = [case_named(f"random-{number}") for number in (7009, 7013, 7020, 7025)]
    ours, field = (
        [run(case.scenario, seed=0, policy=policy) for case in loads] for policy in (Policy.BASELINE, Policy.AIMD_PAUSE)
    )
    assert sum(result.lost for result in ours) == 0
    assert sum(result.lost for result in field) > 20
    assert sum(result.refused for result in ours) < 0.05 * sum(result.attempts for result in ours)


def test_a_file_travels_by_its_text_and_runs_alike_in_other_processes(written, tmp_path):
    policy = policy_named(written())
    copy = pickle.loads(pickle.dumps(policy))
    (tmp_path / "mine.py").write_text("raise SystemExit", encoding="utf-8")
    setup = Setup(cases()["micro-5"])
    assert copy == policy
    assert copy.about == policy.about == "a policy in mine.py"
    alone, spread = (run_series([setup], [copy], range(2), workers=workers)[0].runs for workers in (1, 2))
    assert alone == spread


def test_an_error_in_another_process_is_told_as_in_this(written):
    policy = policy_named(written((ADMITS, "go[0]")))
    setup = Setup(cases()["micro-5"])
    with pytest.raises(
        PolicyFault, match=r"mine.py:20: Minimal.poll raised IndexError: .*\n.*\n  in micro-5, .*, seed 0"
    ):
        run_series([setup], [policy], range(2), workers=2)


def test_a_policy_that_wakes_nobody_ends_the_run(written):
    for change in ((ADMITS, "pass"), (WAKES, "return None")):
        result = run(cases()["replay-11"].scenario, seed=0, policy=policy_named(written(change)))
        assert result.lost == result.agents if change[0] == ADMITS else result.lost


@each(
    ("name", "words"),
    [
        ("nowhere.py:Minimal", r"nowhere\.py: No such file or directory; write FILE\.py:Class"),
        ("mine.py", r"mine\.py: the class is missing; write mine\.py:Minimal"),
        ("mine.py:Maximal", r"mine\.py: there is no class 'Maximal'; write mine\.py:Minimal"),
        ("bytes.py:Minimal", r"bytes\.py: no text in UTF-8"),
        ("empty.py:Minimal", r"empty\.py: there is no class 'Minimal'; the file has no class"),
    ],
)
def test_a_file_without_the_class_is_named_with_the_cure(written, tmp_path, name, words):
    written()
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UnknownPolicy, match=words):
        policy_named(name)


@each(
    ("old", "new", "words"),
    [
        ("def poll(self, now):", "def poll(self, now)", r"mine\.py:15: expected ':'; correct"),
        ('"""Eight', 'import nothing\n"""Eight', r"mine\.py:1: raised ModuleNotFoundError: .*; correct this line"),
        (CANCELS, "", r"mine\.py: class Minimal lacks cancel; add\n  def cancel\(self, ticket_id, now\) ends"),
        (
            "waiting = rng, {}",
            "waiting = rng.x, {}",
            r"mine\.py:9: Minimal\.__init__ raised AttributeError: .*\n  the class is called",
        ),
        ("def __init__(self, rng)", "def __init__(self)", r"mine\.py:8: Minimal\.__init__ raised TypeError"),
        (
            "class Minimal:",
            "class Minimal:\n    reaps_after_s = 'soon'",
            r"Minimal\.reaps_after_s is 'soon'; write seconds",
        ),
    ],
)
def test_an_error_in_the_file_is_named_before_any_run(written, old, new, words):
    with pytest.raises(UnknownPolicy, match=words):
        policy_named(written((old, new)))


@each(
    ("old", "new", "words"),
    [
        ("return go", "return go[99]", r":21: Minimal\.poll raised IndexError: .*, at 0\.000 s of the run\n  def poll"),
        ("return go", "return None", r":15: Minimal\.poll raised TypeError: 'NoneType'"),
        (ADMITS, f"{ADMITS[:-1]}) or {ADMITS}", r"decided on ticket '3\.1', which is in flight already"),
        (
            ADMITS,
            ADMITS.replace("ticket,", "__import__('msgspec').structs.replace(ticket, id='x'),"),
            r"'x', which does not wait",
        ),
        (
            ADMITS,
            ADMITS.replace("ticket,", "__import__('msgspec').structs.replace(ticket, pool=0),"),
            r"to 0, which does not serve",
        ),
        (ADMITS, "go.append(ticket)", r"returned Ticket\(.*…: this is no decision"),
        (ADMITS, ADMITS.replace("now", "0"), r"returned Admitted\(.*: `admitted_at` has to be now"),
        (ADMITS, "go.append(Admitted(ticket))", r"an Admitted has an Attempt of a Ticket"),
        (
            WAKES,
            "return 'soon'",
            r":23: Minimal\.next_wakeup returned 'soon'.*\n  def next_wakeup\(self\) returns None or",
        ),
        (WAKES, "return float('nan')", r"next_wakeup returned nan"),
        (WAKES, "return 1.0", r"next_wakeup returned 1\.0, which is not later than the poll at 1\.0"),
        (WAKES, "return self.now + 1e-6", r"next_wakeup asked for 100,000 polls in a row"),
        (
            "return Finished()",
            "return None",
            r":28: Minimal\.settle returned None for an attempt that ended as success",
        ),
        (
            "return GiveUp(Reason.SPENT_ATTEMPTS)",
            "return Finished()",
            r"settle returned Finished\(\) for an attempt that ended as \w+",
        ),
        ("GiveUp(Reason.SPENT_ATTEMPTS)", "GiveUp('spent')", r"returned GiveUp\(reason='spent'\)"),
        ("Backoff(self.opens_at,", "Backoff(None,", r"returned Backoff\(until=None"),
        ("        self.in_flight -= 1\n", "        raise SystemExit\n", r":29: Minimal\.settle raised SystemExit, at"),
        (
            ", *, answered=True",
            "",
            r":26: Minimal\.observe raised TypeError: .*\n  def observe\(self, attempt, hints, now, \*, answered",
        ),
        (
            "def submit(self, ticket, settings, now)",
            "def submit(self, ticket)",
            r":12: Minimal\.submit raised TypeError",
        ),
        (
            "        self.in_flight -= 1\n",
            "        raise KeyboardInterrupt\n",
            r":29: Minimal\.settle was interrupted by the keyboard",
        ),
    ],
)
def test_a_broken_rule_ends_the_run_with_file_line_method_and_cure(written, old, new, words):
    policy = policy_named(written((old, new)))
    with pytest.raises(PolicyFault, match=words):
        run(cases()["replay-11"].scenario, seed=0, policy=policy)


def test_the_command_prints_the_table_or_the_error_and_no_traceback(written):
    def run_with(policy):
        return CliRunner().invoke(main, ["lab", "scenario", "run", "replay-11", "--seeds", "1", "--policy", policy])

    good = run_with(written())
    assert (good.exit_code, "replay-11" in good.output) == (0, True)
    bad = run_with(written((ADMITS, "go[0]")))
    assert bad.exit_code == 1
    assert re.match(r"Error: mine\.py:20: .*\n  def poll.*\n  in replay-11, bucket, seed 0\n$", bad.output)
    missing = run_with("nowhere.py:Mine")
    assert (missing.exit_code, "Traceback" in missing.output) == (2, False)
