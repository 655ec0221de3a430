"""The agents file: YAML → `AgentRules`, with the same errors as a profile's."""

from pathlib import Path

from hivemind_addon.formats.base.document import read_document
from hivemind_addon.formats.base.typed import DocumentError, convert
from hivemind_addon.formats.profile.grants import AgentRules, Grants
from hivemind_addon.formats.profile.rules import PROFILE_RULES


def load_agents(file: Path) -> AgentRules:
    """The rules of a file. DocumentError: one line that names file, key path and cure."""
    cure = "write agents, groups or everyone, or leave the file out"
    rules: AgentRules = convert(AgentRules, read_document(file, cure_when_empty=cure), file, rules=PROFILE_RULES)
    for name, grants in rules.agents.items():
        if grants.group and grants.group not in rules.groups:
            known = ", ".join(rules.groups) or "none"
            raise DocumentError(
                file, f"agents.{name}.group", f"there is no group {grants.group!r}", f"known: {known}; add it to groups"
            )
        _check_budgets(grants, file, f"agents.{name}")
    for name, shared in rules.groups.items():
        _check_budgets(shared, file, f"groups.{name}")
    _check_budgets(rules.everyone, file, "everyone")
    return rules


def _check_budgets(grants: Grants, file: Path, place: str) -> None:
    seen = set()
    for index, one in enumerate(grants.budgets):
        here = f"{place}.budgets[{index}]"
        if one.tokens is None and one.usd is None and one.calls is None:
            raise DocumentError(file, here, "it limits nothing", "write tokens: 5000000, usd: 20 or calls: 500")
        if one.per in seen:
            problem = f"there are two budgets per {one.per.value}"
            raise DocumentError(file, here, problem, "write tokens, usd and calls into one")
        seen.add(one.per)
