from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim import dialect as wire
from hivemind_addon.lab.sim.dialect import LimitView, SimDialect
from tests.cases import over


@over("dialect", [SimDialect.CHAT, SimDialect.RESPONSES])
def test_headers_hold_durations(dialect):
    limits = [
        LimitView(Dimension.REQUESTS, 60, 59, 1),
        LimitView(Dimension.TOTAL_TOKENS, 150_000, 149_984.2, 0.006),
        LimitView(Dimension.INPUT_TOKENS, 1, 1, 0),
    ]
    assert dict(wire.limit_headers(dialect, limits, 0)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-tokens": "6ms",
    }
