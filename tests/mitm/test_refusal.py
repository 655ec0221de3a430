import json

import pytest

from hivemind_addon.core.decision import Reason, Shed
from hivemind_addon.core.ticket import Demand, PoolKey, Ticket
from hivemind_addon.mitm.refusal import come_back_s, make_refusal, refusal_text
from hivemind_addon.profile.load import load_profiles
from hivemind_addon.wire.dialect import dialect_of

PROFILES = load_profiles(None).by_name


def shed(reason=Reason.DEADLINE, come_back_s=2.2):
    ticket = Ticket(
        id="t",
        pool=PoolKey("h", "a", "m"),
        agent="a",
        session="s",
        model="m",
        demand=Demand(),
        arrived_at=0,
        deadline_at=9,
        shed_at=8,
    )
    return Shed(ticket, reason, come_back_s)


@pytest.mark.parametrize(
    ("name", "status", "error"),
    [
        ("anthropic", 429, "rate_limit_error"),
        ("openai", 503, "server_is_overloaded"),
        ("openai-compatible", 503, "server_is_overloaded"),
    ],
)
def test_a_refusal_is_in_the_providers_own_shape_and_says_when_to_come_back(name, status, error):
    profile = PROFILES[name]
    answer = make_refusal(profile, dialect_of(profile.dialect), shed())
    assert answer.status_code == status
    assert answer.headers["retry-after"] == "3"
    assert answer.headers["x-should-retry"] == "true"
    assert answer.headers["content-type"] == "application/json"
    body = json.loads(answer.content)
    assert body["error"]["type"] == error
    assert "client about to give up" in body["error"]["message"]
    assert (body.get("type") == "error") is (name == "anthropic")


@pytest.mark.parametrize(("come_back", "seconds"), [(0, 1), (0.2, 1), (1.01, 2), (29.5, 30), (31, 30), (1e9, 30)])
def test_the_time_is_whole_seconds_that_the_sdks_obey(come_back, seconds):
    assert come_back_s(PROFILES["anthropic"], shed(come_back_s=come_back)) == seconds


def test_a_stopping_proxy_says_so():
    assert "stopping" in refusal_text(shed(Reason.STOPPING))
    assert "keeps its turn" not in refusal_text(shed(Reason.STOPPING))
