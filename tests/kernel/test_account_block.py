import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.account_block import AccountBlock
from hivemind_addon.kernel.values.command import Declined, Resume
from hivemind_addon.kernel.values.decision import ActiveBlock, Backoff, GiveUp, Refused
from hivemind_addon.kernel.values.events import AccountBlocked, AccountUnblocked, Held, TicketEnded
from hivemind_addon.kernel.values.snapshot import AccountBlockView
from hivemind_addon.kernel.values.ticket import Reason
from tests.kernel.samples import CANCELLED, FAILED, IGNORED, POOL, SUCCESS, THROTTLED, Bench, after

HOURS = 7200.0
WORDS = "Your account has reached its weekly limit"
SPENT = replace(IGNORED, reason="429 rate_limit_error", words=WORDS, status=429, account_block_s=HOURS)


class BlockedBench(Bench):
    """Keeps what was refused."""

    def __init__(self, **more):
        super().__init__(**more)
        self.refused: list[Refused] = []

    def poll(self):
        scheduler_poll = self.scheduler.poll

        def kept(now):
            decisions = scheduler_poll(now)
            self.refused += [one for one in decisions if isinstance(one, Refused)]
            return decisions

        self.scheduler.poll = kept
        try:
            return super().poll()
        finally:
            self.scheduler.poll = scheduler_poll

    @property
    def refused_ids(self):
        return [one.ticket.id for one in self.refused]


def hit(*waiting, slots=1):
    bench = BlockedBench(slots=slots)
    bench.submit("first", *waiting)
    assert isinstance(bench.settle("first", SPENT), GiveUp)
    return bench


def test_everybody_who_waits_is_told_at_once_with_the_end():
    bench = hit("a", "b")
    assert bench.refused_ids == ["a", "b"]
    assert {one.cause for one in bench.refused} == {ActiveBlock(WORDS, HOURS)}
    assert bench.pool.account_block == AccountBlockView(WORDS, HOURS)
    (event,) = bench.of(AccountBlocked)
    assert (event.until, event.reason) == (HOURS, WORDS)
    assert [one.end for one in bench.of(TicketEnded)] == ["gave up", "refused", "refused"]
    assert bench.scheduler.is_idle


def test_whoever_comes_until_the_end_is_told_too():
    bench = hit()
    bench.advance(299)
    assert bench.submit("late") == []
    assert bench.refused_ids == ["late"]
    assert bench.scheduler.next_wakeup() is None


def test_at_the_end_one_goes_first_and_the_others_wait_for_its_answer():
    bench = hit(slots=4)
    bench.advance(HOURS)
    assert bench.pool.account_block == AccountBlockView(WORDS, 0.0)
    assert bench.submit("a", "b", "c") == ["a"]
    assert {one.reason for one in bench.of(Held) if one.ticket_id in "bc"} == {Reason.ACCOUNT_BLOCK}
    bench.observe("a")
    assert set(bench.running) == {"a", "b", "c"}
    assert bench.of(AccountUnblocked)
    assert bench.pool.account_block is None
    bench.settle("a")
    assert len(bench.of(AccountUnblocked)) == 1


def test_one_that_goes_first_and_hits_the_wall_again_puts_it_back_for_all():
    bench = hit(slots=4)
    bench.advance(HOURS)
    bench.submit("a", "b")
    bench.settle("a", replace(SPENT, account_block_s=700.0))
    assert bench.refused_ids == ["b"]
    assert bench.pool.account_block == AccountBlockView(WORDS, 700.0)
    assert len(bench.of(AccountBlocked)) == 2


class TestHolding:
    """Clients that will still be there when it ends."""

    def test_they_are_held_until_the_end_and_all_others_are_told(self):
        bench = BlockedBench(slots=4)
        bench.submit("first", patience_s=2 * HOURS)
        bench.submit("short")
        assert isinstance(bench.settle("first", SPENT), Backoff)
        bench.submit("long", patience_s=2 * HOURS)
        bench.submit("too short", patience_s=HOURS - 1)
        assert bench.running.keys() == {"short"}
        assert bench.refused_ids == ["too short"]
        assert {view.ticket.id for view in bench.pool.tickets if view.position} == {"first", "long"}
        bench.settle("short")
        while bench.now < HOURS:
            bench.advance_to_wakeup()
            for looks in bench.running.keys() & {"first", "long"}:
                if bench.now < HOURS:
                    bench.settle(looks, replace(SPENT, account_block_s=HOURS - bench.now))
        assert len(bench.running) == 1
        assert len(bench.of(AccountBlocked)) == 1
        bench.observe(next(iter(bench.running)))
        assert bench.running.keys() == {"first", "long"}
        assert not bench.shed

    def test_one_looks_every_five_minutes_and_an_answer_ends_it(self):
        bench = BlockedBench(slots=4)
        bench.submit("first", patience_s=2 * HOURS)
        bench.settle("first", SPENT)
        bench.submit("second", patience_s=2 * HOURS)
        looked_at = []
        for _ in range(3):
            while not bench.running:
                bench.advance_to_wakeup()
            looked_at.append(bench.now)
            assert len(bench.running) == 1, "the others wait for its answer"
            (looks,) = bench.running
            bench.settle(looks, replace(SPENT, account_block_s=HOURS - bench.now))
        assert looked_at == [300.0, 600.0, 900.0]
        while not bench.running:
            bench.advance_to_wakeup()
        bench.observe(*bench.running)
        assert bench.running.keys() == {"first", "second"}
        assert bench.pool.account_block is None

    def test_looking_again_and_again_spends_none_of_its_attempts(self):
        bench = BlockedBench()
        bench.submit("first", patience_s=5 * HOURS)
        for _ in range(40):
            assert isinstance(bench.settle("first", replace(SPENT, account_block_s=2 * HOURS)), Backoff)
            while not bench.running:
                bench.advance_to_wakeup()

    def test_whose_time_comes_before_the_end_after_all_is_told_then(self):
        bench = BlockedBench(slots=4)
        bench.submit("first", patience_s=2 * HOURS)
        bench.settle("first", SPENT)
        bench.advance_to_wakeup()
        while not bench.running:
            bench.advance_to_wakeup()
        assert isinstance(bench.settle("first", replace(SPENT, account_block_s=3 * HOURS)), GiveUp)

    def test_where_nobody_says_until_when_nobody_is_held(self):
        bench = BlockedBench(slots=1)
        bench.submit("first", "waits", patience_s=5 * HOURS)
        assert isinstance(bench.settle("first", replace(SPENT, account_block_s=0.0)), GiveUp)
        assert bench.refused_ids == ["waits"]
        assert bench.refused[0].cause == ActiveBlock(WORDS, 300.0, is_end_told=False)
        bench.advance(300)
        assert bench.submit("looks", "follows") == ["looks"]
        assert bench.refused_ids == ["waits"]

    def test_an_end_that_is_told_is_news_where_none_was_and_none_is_no_news(self):
        bench = BlockedBench(slots=4)
        bench.submit("first", "second", "third", patience_s=HOURS)
        bench.settle("first", replace(SPENT, account_block_s=0.0))
        bench.advance(1)
        bench.settle("second", replace(SPENT, account_block_s=0.0))
        assert len(bench.of(AccountBlocked)) == 1
        assert isinstance(bench.settle("third", replace(SPENT, account_block_s=60.0)), Backoff)
        assert len(bench.of(AccountBlocked)) == 2
        assert bench.pool.account_block.ends_in_s == 60.0
        assert not bench.refused

    def test_of_those_that_are_told_one_looks_where_nobody_is_held(self):
        bench = hit(slots=4)
        bench.advance(300)
        assert bench.submit("a", "b") == ["a"]
        assert bench.refused_ids == ["b"]
        bench.observe("a")
        assert bench.submit("c") == ["c"]


class TestLongWaits:
    """Of refusals that name no account."""

    def test_a_second_request_that_is_sent_later_makes_it_the_accounts(self):
        bench = BlockedBench(slots=4)
        for name, is_blocked in (("first", False), ("second", True)):
            bench.submit(name, request_hash=name)
            assert bench.settle(name, after(THROTTLED, HOURS)) == GiveUp(Reason.LONG_WAIT)
            assert (bench.pool.account_block is not None) is is_blocked
            bench.advance(1)
        assert bench.submit("third") == []
        assert bench.refused_ids == ["third"]
        assert bench.of(TicketEnded)[-1].reason.startswith(Reason.MODEL_BLOCK.value)
        assert bench.pool.account_block.words == Reason.MODEL_BLOCK.value
        bench.advance(60)
        assert bench.submit("test") == ["test"]
        bench.settle("test")
        assert bench.pool.account_block is None
        bench.submit("fourth")
        assert isinstance(bench.settle("fourth", after(THROTTLED, HOURS)), Backoff), "such waits have proved wrong"

    @pytest.mark.parametrize("case", ["sent before", "another passed", "the same again"])
    def test_otherwise_nobody_else_is_touched(self, case):
        bench = BlockedBench(slots=4)
        bench.submit("first", "early", session="s", request_hash="x")
        bench.settle("first", after(THROTTLED, HOURS))
        bench.advance(1)
        if case == "another passed":
            bench.submit("other")
            bench.settle("other")
        if case != "sent before":
            bench.settle("early")
            bench.submit("early", session="s", request_hash="x" if case == "the same again" else "y")
        bench.settle("early", after(THROTTLED, HOURS))
        assert bench.pool.account_block is None
        assert bench.submit("third") == ["third"]


def test_a_person_lifts_it():
    bench = hit(slots=4)
    result = bench.scheduler.command(Resume(POOL.host), bench.now)
    assert result.done
    assert result.lifted == (POOL,)
    assert bench.submit("a", "b") == ["a", "b"]
    assert bench.of(AccountUnblocked)
    assert bench.scheduler.command(Resume(POOL.host), bench.now).declined is Declined.NOT_PAUSED


@pytest.mark.parametrize("end", [CANCELLED, replace(IGNORED, status=400)], ids=["cancelled", "400"])
def test_one_that_proves_nothing_hands_over_to_the_next(end):
    bench = hit(slots=4)
    bench.advance(HOURS)
    bench.submit("a", "b", "c")
    bench.settle("a", end)
    assert set(bench.running) == {"b"}
    assert not bench.of(AccountUnblocked)
    bench.settle("b", SUCCESS)
    assert set(bench.running) == {"c"}
    assert bench.pool.account_block is None


def test_what_was_on_its_way_when_the_wall_was_hit_proves_nothing():
    bench = BlockedBench(slots=4)
    bench.submit("first", "second", "third")
    bench.settle("first", SPENT)
    bench.observe("second")
    bench.settle("second", SUCCESS)
    assert bench.pool.account_block is not None
    bench.settle("third", FAILED)
    assert bench.refused_ids == ["third"], "its retry would meet the wall"


def test_the_latest_end_counts_and_the_same_end_is_told_once():
    bench = BlockedBench(slots=4)
    bench.submit("first", "second", "third")
    bench.settle("first", SPENT)
    bench.settle("second", replace(SPENT, account_block_s=HOURS + 1))
    assert len(bench.of(AccountBlocked)) == 1
    bench.settle("third", replace(SPENT, account_block_s=2 * HOURS))
    assert len(bench.of(AccountBlocked)) == 2
    assert bench.pool.account_block.ends_in_s == 2 * HOURS


@pytest.mark.parametrize("absurd", [float("nan"), float("inf"), -5.0, 1e18])
def test_an_absurd_end_is_never_for_good(absurd):
    wall = AccountBlock()
    assert wall.hit("odd", absurd, 0)
    assert 0 < wall.passes_at <= 32 * 86_400
