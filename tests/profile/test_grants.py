from hivemind_addon.core.spend import Budget, Period, Scope
from hivemind_addon.core.ticket import Priority
from hivemind_addon.profile.grants import AgentGrants, AgentRules, Allowance, Granted, Grants

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
