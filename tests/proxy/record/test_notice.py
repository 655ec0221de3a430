import pytest

from hivemind_addon.kernel.values import events
from hivemind_addon.kernel.values.spend import Budget, Period, Scope
from hivemind_addon.kernel.values.ticket import Outcome, OutcomeKind, PoolKey
from hivemind_addon.proxy.record.notice import Notices
from tests.proxy.record.samples import POOL

WALL_S = 1_700_000_000.0
OTHER = PoolKey("host.test", "key-2", "model")


class Night:
    """Notices, and a clock that only the test moves."""

    def __init__(self):
        self.now = 0.0
        self.notices = Notices()

    def happens(self, kind, **values):
        """One event now; what is called for at once."""
        self.notices(kind(at=self.now, **values))
        return self.calls()

    def calls(self):
        return [(call.cause, call.state) for call in self.full_calls()]

    def full_calls(self):
        return self.notices.due(self.now, WALL_S + self.now)

    def until(self, now):
        """Let time pass, turn by turn as the timer would; what was called for, with its instant."""
        told = []
        while (at := self.notices.next_wakeup()) is not None and at <= now:
            self.now = max(self.now, at)
            told += [(call, self.now) for call in self.calls()]
        self.now = now
        return told

    def breaker(self, state, before=""):
        return self.happens(events.BreakerChanged, pool=POOL, state=state, reason="529", before=before)

    def wall(self, lasts_s=7200.0):
        return self.happens(events.AccountBlocked, pool=POOL, until=self.now + lasts_s, reason="429 rate_limit_error")

    def attempt(self, status, reason="", kind=OutcomeKind.IGNORED, pool=POOL):
        outcome = Outcome(kind, f"{status} {reason}", status)
        return self.happens(
            events.AttemptEnded, ticket_id="t", pool=pool, attempt=1, outcome=outcome, usage=None, duration_s=1.0
        )

    def trip(self):
        return self.happens(events.GuardTripped, ticket_id=None, where="hook", error="E")


@pytest.fixture
def night():
    return Night()


def test_a_wall_is_called_for_at_once_with_its_end_and_its_opening_is_told(night):
    night.now = 50.0
    night.notices(events.AccountBlocked(at=50.0, pool=POOL, until=7250.0, reason="429 rate_limit_error"))
    (call,) = night.full_calls()
    assert (call.cause, call.state, call.pool) == ("account block", "began", "host.test/key-1/model")
    assert (call.wall, call.ends_at) == (WALL_S + 50, WALL_S + 7250)
    assert "refused for 2 h 0 min" in call.text
    assert night.calls() == []
    night.now = 7260.0
    night.notices(events.AccountUnblocked(at=7260.0, pool=POOL))
    (end,) = night.full_calls()
    assert (end.state, end.ends_at) == ("ended", None)
    assert end.text == "host.test/key-1/model: the account is served again after 2 h 1 min"


def test_a_breaker_is_called_for_when_it_has_been_open_for_five_minutes(night):
    assert night.breaker("open", "closed") == []
    for at in range(10, 290, 20):
        night.now = at
        assert night.breaker("half-open", "open") == night.breaker("open", "half-open") == []
    assert night.until(299) == []
    assert night.until(400) == [(("breaker", "began"), 300.0)]
    assert night.breaker("closed", "half-open") == [("breaker", "ended")]


def test_a_short_outage_wakes_nobody(night):
    night.breaker("open")
    night.now = 299
    assert night.breaker("closed") == []
    assert night.until(10_000) == []


def test_a_wall_that_comes_and_goes_is_called_for_once_in_ten_minutes_and_then_if_it_lasts(night):
    assert night.wall() == [("account block", "began")]
    night.now = 10
    assert night.happens(events.AccountUnblocked, pool=POOL) == [("account block", "ended")]
    night.now = 20
    assert night.wall() == []
    night.now = 30
    assert night.happens(events.AccountUnblocked, pool=POOL) == [], "its beginning was not told"
    night.now = 40
    assert night.wall() == []
    assert night.until(5000) == [(("account block", "began"), 600.0)]


def test_a_wall_that_has_ended_by_itself_before_its_turn_is_not_called_for(night):
    night.wall(30)
    night.now = 60
    night.wall(30)
    assert night.until(5000) == []


def test_what_has_no_end_is_called_for_once_in_ten_minutes(night):
    assert night.trip() == [("guard", "began")]
    assert [night.trip() for _ in range(50)] == [[]] * 50
    assert night.until(599) == []
    night.now = 601
    assert night.trip() == [("guard", "began")]


def test_a_row_of_trips_is_not_called_for_when_it_is_long_over(night):
    night.trip()
    night.now = 5
    night.trip()
    assert night.until(5000) == []


FULL = {"pool": POOL, "session": "s", "model": "m", "tokens": 8, "window_tokens": 10, "growth_per_turn": 0.0}


def test_each_holder_of_a_budget_is_a_trouble_of_its_own(night):
    budgets = [Budget(Scope.AGENT, name, Period.DAY, tokens=10) for name in ("a", "b", "a")]
    told = [night.happens(events.BudgetSpent, budget=one, unit="tokens", spent=10, limit=10) for one in budgets]
    assert told == [[("budget", "began")], [("budget", "began")], []]


def test_each_model_without_a_price_is_called_for_under_a_budget_in_money(night):
    limit = Budget(Scope.AGENT, "a", Period.DAY, micro_usd=10)
    told = [night.happens(events.PriceMissing, pool=POOL, model=model, budget=limit) for model in ("m", "n", "m")]
    assert told == [[("budget", "began")], [("budget", "began")], []]


def test_full_contexts_are_one_trouble_for_all_agents(night):
    told = [night.happens(events.ContextFull, **FULL | {"agent": agent}) for agent in ("a", "b", "a")]
    assert told == [[("context", "began")], [], []]


def test_a_disk_is_called_for_and_its_cure(night):
    assert night.happens(events.StateUnsaved, reason="no space") == [("state", "began")]
    assert night.happens(events.StateUnsaved, reason="") == [("state", "ended")]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "authentication_error"), (402, ""), (400, "billing_error"), (429, "insufficient_quota")],
)
def test_a_key_that_stays_refused_for_a_minute_is_called_for(night, status, reason):
    assert night.attempt(status, reason) == []
    assert night.until(100) == [(("refused", "began"), 60.0)]
    assert night.attempt(200, kind=OutcomeKind.SUCCESS) == [("refused", "ended")]


def test_a_client_that_logs_in_again_wakes_nobody(night):
    night.attempt(401)
    night.now = 3
    night.attempt(200, kind=OutcomeKind.SUCCESS)
    assert night.until(1000) == []


@pytest.mark.parametrize(("status", "kind"), [(400, OutcomeKind.IGNORED), (429, OutcomeKind.THROTTLED)])
def test_other_refusals_are_not_the_keys(night, status, kind):
    night.attempt(status, "invalid_request_error", kind)
    assert night.until(1000) == []


def test_pools_are_troubled_each_for_itself_until_they_are_one(night):
    night.wall()
    night.attempt(401, pool=POOL)
    night.happens(events.PoolsMerged, pool=OTHER, merged=POOL)
    assert night.until(1000) == []
    assert night.happens(events.AccountUnblocked, pool=OTHER) == [("account block", "ended")]


def test_it_stays_bounded_and_keeps_its_newest(night):
    for number in range(1500):
        night.now = number * 10.0
        pool = PoolKey("host.test", f"key-{number}", "model")
        assert night.happens(events.AccountBlocked, pool=pool, until=night.now + 99, reason="x") == [
            ("account block", "began")
        ]
        night.happens(events.AccountUnblocked, pool=pool)
    assert len(night.notices._troubles) <= 1000


def answers(night, garbage, kind=OutcomeKind.SUCCESS):
    outcome = Outcome(kind, "200", 200, garbage=garbage)
    return night.happens(
        events.AttemptEnded, ticket_id="t", pool=POOL, attempt=1, outcome=outcome, usage=None, duration_s=1.0
    )


def test_many_garbage_answers_are_called_for_and_their_end_is_told(night):
    for _ in range(16):
        assert answers(night, "") == []
    for _ in range(4):
        assert answers(night, "empty answer", OutcomeKind.IGNORED) == []
    assert answers(night, "empty answer") == [("garbage", "began")]
    assert answers(night, "encoding junk") == [], "once"
    told = [answers(night, "") for _ in range(20)]
    assert [one for one in told if one] == [[("garbage", "ended")]]


def test_a_few_garbage_answers_wake_nobody(night):
    for number in range(100):
        assert answers(night, "" if number % 5 else "empty answer") == []


def test_the_call_says_how_many_and_what(night):
    for _ in range(5):
        night.notices(
            events.AttemptEnded(
                at=night.now,
                ticket_id="t",
                pool=POOL,
                attempt=1,
                outcome=Outcome(OutcomeKind.SUCCESS, "200", 200, garbage="encoding junk"),
                usage=None,
                duration_s=1.0,
            )
        )
    (call,) = night.full_calls()
    assert call.text == f"{POOL}: 5 of the last 5 answers were garbage, the newest: encoding junk"
