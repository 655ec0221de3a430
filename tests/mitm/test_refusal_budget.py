import json
from pathlib import Path

import pytest

from hivemind_addon.core.decision import Reason, Refused, Shed
from hivemind_addon.core.spend import Budget, Period, Scope, Shortage
from hivemind_addon.mitm.refusal import budget_text, make_budget_refusal, make_refusal
from hivemind_addon.profile.load import load_profiles
from hivemind_addon.wire.dialect import dialect_of
from tests.core.samples import ticket

PACKAGED = load_profiles(None).by_name
FILE = Path("/etc/agents.yaml")


def refused(*, spent=5_100_000, needed=200_000, name="agent-7", scope=Scope.AGENT, per=Period.RUN, renews_in_s=None):
    budget = Budget(scope, name, per, micro_usd=5_000_000)
    return Refused(ticket(), Shortage(budget, "micro_usd", 5_000_000, spent, 0, needed, renews_in_s))


def test_a_spent_budget_says_who_how_much_and_how_to_raise_it():
    assert budget_text(refused(), FILE) == (
        "hivemind: the budget of agent agent-7 is spent: $5.10 of $5.00 for this run. "
        "To go on now, raise agents: agent-7: budgets in /etc/agents.yaml."
    )


def test_one_that_renews_says_when():
    text = budget_text(refused(per=Period.DAY, renews_in_s=4000.0, scope=Scope.EVERYONE, name=""), FILE)
    assert "$5.10 of $5.00 per day. A new one begins in 1 h 7 min. To go on now, raise everyone: budgets in" in text


def test_one_with_too_little_left_says_what_is_needed():
    text = budget_text(refused(spent=4_900_000), FILE)
    assert "has too little left: $4.90 of $5.00 for this run is spent, and this request needs about $0.2000" in text


@pytest.mark.parametrize(
    ("name", "error"), [("anthropic", "invalid_request_error"), ("openai", "billing_hard_limit_reached")]
)
def test_the_refusal_is_one_that_clients_do_not_retry(name, error):
    profile = PACKAGED[name]
    answer = make_budget_refusal(profile, dialect_of(profile.dialect), refused(), FILE)
    assert answer.status_code == 400
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    body = json.loads(answer.content)
    assert body["error"]["type"] == error
    assert "budget of agent agent-7" in body["error"]["message"]


def test_a_shed_request_is_told_to_come_back():
    profile = PACKAGED["anthropic"]
    answer = make_refusal(profile, dialect_of(profile.dialect), Shed(ticket(), Reason.DEADLINE, 500.0))
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "30"
    assert answer.headers["x-should-retry"] == "true"
