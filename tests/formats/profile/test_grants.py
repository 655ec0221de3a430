import pytest

from hivemind_addon.formats.profile.grants import AgentGrants, AgentRules, Allowance, Granted, Grants, parse_allowance
from hivemind_addon.kernel.values.spend import Budget, Period, Scope
from hivemind_addon.kernel.values.ticket import Priority

RULES = AgentRules(
    agents={
        "agent-7": AgentGrants(max_priority=Priority.CRITICAL, group="reviewers"),
        "agent-*": AgentGrants(budgets=(Allowance(usd=1.5),), weight=2.0),
        "*": AgentGrants(weight=0.5),
    },
    groups={"reviewers": Grants(budgets=(Allowance(per=Period.DAY, tokens=100),), weight=3.0, max_fan_out=4)},
    everyone=Grants(budgets=(Allowance(per=Period.HOUR, usd=20.0, tokens=5),), max_priority=Priority.LOW),
)


def test_without_rules_everybody_has_the_usual():
    assert AgentRules().granted("anyone") == Granted()


def test_the_exact_name_counts_before_the_longest_glob():
    assert RULES.granted("agent-7").max_priority is Priority.CRITICAL
    assert RULES.granted("agent-8").weight == 2.0
    assert RULES.granted("other").weight == 0.5


def test_what_an_agent_has_not_of_its_own_it_has_of_its_group_or_of_everyone():
    agent = RULES.granted("agent-7")
    assert (agent.weight, agent.max_fan_out) == (3.0, 4)
    assert RULES.granted("agent-8").max_priority is Priority.LOW


def test_each_agent_of_a_glob_has_a_budget_of_its_own_and_shares_the_others():
    everyones = Budget(Scope.EVERYONE, "", Period.HOUR, tokens=5, micro_usd=20_000_000)
    assert RULES.granted("agent-8").budgets == (Budget(Scope.AGENT, "agent-8", micro_usd=1_500_000), everyones)
    assert RULES.granted("agent-7").budgets == (Budget(Scope.GROUP, "reviewers", Period.DAY, tokens=100), everyones)


def test_an_amount_is_tokens_or_dollars(subtests):
    cases = [
        ("500000", Allowance(tokens=500_000)),
        ("500k", Allowance(tokens=500_000)),
        (" 1.5M ", Allowance(tokens=1_500_000)),
        ("$5", Allowance(usd=5.0)),
        ("12.50usd", Allowance(usd=12.5)),
        ("3 USD", Allowance(usd=3.0)),
    ]
    for text, allowance in cases:
        with subtests.test(text=text, allowance=allowance):
            assert parse_allowance(text) == allowance


def test_what_is_no_amount_is_refused(subtests):
    for text in ["", "5 euros", "-3", "$", "1.2345k", "$1.1234567", "1e9", "nan"]:
        with subtests.test(text=text), pytest.raises(ValueError, match=r"^"):
            parse_allowance(text)


def test_a_budget_of_the_command_line_stands_in_the_place_of_the_files_for_the_same_period():
    rules = RULES.allot(Allowance(tokens=9), Allowance(usd=2.0))
    hour = Budget(Scope.EVERYONE, "", Period.HOUR, tokens=5, micro_usd=20_000_000)
    run = Budget(Scope.EVERYONE, "", Period.RUN, tokens=9)
    own = Budget(Scope.AGENT, "agent-8", micro_usd=2_000_000)
    assert rules.granted("agent-8").budgets == (own, hour, run)


def test_a_budget_of_each_agent_is_also_that_of_agents_that_no_rule_names():
    granted = AgentRules().allot(None, Allowance(tokens=7)).granted("anyone")
    assert granted == Granted(budgets=(Budget(Scope.AGENT, "anyone", tokens=7),))
    assert AgentRules().allot(None, None) == AgentRules()
