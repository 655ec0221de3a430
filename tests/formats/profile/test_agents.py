import pytest

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.formats.profile.agents import load_agents
from hivemind_addon.formats.profile.grants import Compaction, CompactionBy
from hivemind_addon.kernel.values.spend import Period
from hivemind_addon.kernel.values.ticket import Priority

GOOD = """
everyone:
  budgets: [{usd: 100, per: day}]
groups:
  reviewers:
    budgets: [{tokens: 5000000, per: hour}, {usd: 20}]
    max_priority: high
agents:
  "agent-7": {group: reviewers, weight: 2, max_fan_out: 8}
  "rev-*": {group: reviewers, max_priority: critical}
"""


def error_of(tmp_path, text):
    file = tmp_path / "agents.yaml"
    file.write_text(text)
    with pytest.raises(DocumentError) as caught:
        load_agents(file)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    return line.replace(f"{tmp_path}/", "")


def test_a_file_becomes_rules(tmp_path):
    file = tmp_path / "agents.yaml"
    file.write_text(GOOD)
    rules = load_agents(file)
    assert rules.groups["reviewers"].budgets[0].per is Period.HOUR
    assert rules.agents["rev-*"].max_priority is Priority.CRITICAL
    assert [budget.holder for budget in rules.granted("agent-7").budgets] == [
        "group reviewers",
        "group reviewers",
        "everyone",
    ]


def test_a_compaction_is_its_own_else_its_groups_else_everyones_and_nobody_takes_it_back(tmp_path):
    file = tmp_path / "agents.yaml"
    file.write_text(
        """
everyone: {compaction: {}}
groups: {g: {compaction: {at: 0.9, by: stubs}}}
agents: {own: {group: g, compaction: {keep: 0}}, theirs: {group: g}, not: {compaction: {by: nobody}}}
"""
    )
    rules = load_agents(file)
    assert rules.granted("own").compaction == Compaction(keep=0)
    assert rules.granted("theirs").compaction == Compaction(at=0.9, by=CompactionBy.STUBS)
    assert rules.granted("anyone").compaction == Compaction()
    assert rules.granted("not").compaction is None
    file.write_text("everyone: {weight: 1}")
    assert load_agents(file).granted("anyone").compaction is None, "unless it is asked for"


def test_what_is_wrong_is_said_in_one_line_with_its_place_and_cure(tmp_path, subtests):
    cases = [
        ("agent: {}", "agents.yaml: agent: unknown key; did you mean agents?"),
        (
            "agents: {a: {max_priority: urgent}}",
            "agents.a.max_priority: 'urgent' is not known here; write one of critical, high",
        ),
        ("agents: {a: {max_priority: 1}}", "agents.a.max_priority: 1 is not known here"),
        ("agents: {a: {group: x}}", "agents.a.group: there is no group 'x'; known: none; add it to groups"),
        ("agents: {a: {weight: 0}}", "agents.a.weight: 0 is not above zero"),
        (
            "everyone: {compaction: {at: 0.4}}",
            "everyone.compaction: at 0.4, to 0.4: a context must become shorter; write shares of the context window",
        ),
        ("agents: {a: {compaction: {at: 140000}}}", "agents.a.compaction: at 140000, to 0.4"),
        ("agents: {a: {compaction: {keep: -1}}}", "agents.a.compaction.keep: -1 is negative"),
        ("groups: {g: {compaction: {window_tokens: 0}}}", "groups.g.compaction: window_tokens: 0 is not above zero"),
        ("agents: {a: {compaction: {by: me}}}", "agents.a.compaction.by: 'me' is not known here; write one of auto"),
        ("agents: {a: {compaction: off}}", "agents.a.compaction: expected a mapping"),
        (
            "groups: {g: {budgets: [{per: day}]}}",
            "groups.g.budgets[0]: it limits nothing; write tokens: 5000000, usd: 20 or calls: 500",
        ),
        ("everyone: {budgets: [{usd: 1}, {tokens: 1}]}", "everyone.budgets[1]: there are two budgets per run"),
        ("everyone: {budgets: [{usd: -1}]}", "everyone.budgets[0].usd: -1 is negative"),
        ("everyone: {budgets: [{tokens: 1.5}]}", "everyone.budgets[0].tokens: expected a whole number, got 1.5"),
        ("everyone: {budgets: [{usd: 1, per: week}]}", "'week' is not known here; write one of run, hour, day"),
        ("", "agents.yaml: it is empty; write agents, groups or everyone, or leave the file out"),
        ("agents: {a: {}, a: {}}", "the key a stands twice"),
    ]
    for text, says in cases:
        with subtests.test(text=text, says=says):
            assert says in error_of(tmp_path, text)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DocumentError, match="cannot be read"):
        load_agents(tmp_path / "none.yaml")
