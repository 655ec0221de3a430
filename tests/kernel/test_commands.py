"""What a person can do to the scheduler: what each command changes, and what it never breaks."""

from msgspec.structs import replace

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.command import (
    Cancel,
    CommandResult,
    Declined,
    MoveToFront,
    Pause,
    Resume,
    SetBudget,
    SetLimit,
    SetPriority,
)
from hivemind_addon.kernel.values.decision import Admitted, Refused
from hivemind_addon.kernel.values.events import ConcurrencyChanged, Held, TicketEnded
from hivemind_addon.kernel.values.snapshot import LearnedView, PriorityView
from hivemind_addon.kernel.values.spend import Scope
from hivemind_addon.kernel.values.ticket import Priority, Reason
from tests.kernel.samples import CANCELLED, FAILED, OVERLOADED, POOL, SUCCESS, Bench, after, ticket

OTHER = replace(POOL, model_group="other")


def tell(bench, command):
    """Answers whether it was done."""
    result = bench.scheduler.command(command, bench.now)
    bench.refused = []
    for decision in bench.scheduler.poll(bench.now):
        match decision:
            case Refused():
                bench.refused.append(decision)
            case Admitted(attempt):
                bench.running[attempt.ticket.id] = attempt
    bench.events.extend(bench.scheduler.drain_events())
    return result.done


def reasons(bench):
    return [view.reason for view in bench.pool.tickets if view.state != "in flight"]


def waiting(bench):
    return [view.ticket.id for view in bench.pool.tickets if view.state != "in flight"]


class TestPause:
    def test_nothing_goes_and_what_runs_goes_on(self):
        bench = Bench(slots=2)
        bench.submit("a", "b", "c")
        assert tell(bench, Pause())
        bench.settle("a")
        assert bench.advance(100) == []
        assert set(bench.running) == {"b"}
        assert reasons(bench) == ["paused by a person"]
        assert bench.pool.paused
        assert [view.starts_in_s for view in bench.pool.tickets] == [None, None]

    def test_resume_lets_go_in_the_old_order(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", "c")
        tell(bench, SetLimit(limit=1))
        tell(bench, Pause())
        bench.settle("a")
        assert tell(bench, Resume())
        assert set(bench.running) == {"b"}
        bench.settle("b")
        assert set(bench.running) == {"c"}

    def test_a_new_pool_meets_a_pause_that_stands(self):
        bench = Bench()
        assert tell(bench, Pause())
        assert bench.submit("a") == []
        assert bench.of(Held)[0].reason is Reason.PAUSED
        tell(bench, Resume())
        assert set(bench.running) == {"a"}

    def test_one_pool_alone(self):
        bench = Bench()
        bench.submit("a")
        bench.submit("b", pool=OTHER)
        tell(bench, Pause(pool="*/other"))
        bench.submit("c", pool=OTHER)
        assert bench.submit("d") == ["d"]
        assert [pool.paused for pool in bench.scheduler.snapshot(bench.now).pools] == [False, True]
        tell(bench, Pause(pool="api.test"))
        assert bench.submit("e") == []

    def test_who_waits_gets_its_come_back_refusal_in_time(self):
        bench = Bench(slots=1)
        bench.submit("a", patience_s=20)
        bench.settle("a")  # the service time is known: without a pause it would be kept a little longer
        tell(bench, Pause())
        bench.submit("b", patience_s=20)
        bench.advance_to_wakeup()
        assert [shed.ticket.id for shed in bench.shed] == ["b"]
        assert bench.now <= 25
        assert bench.shed[0].come_back_s == 1

    def test_it_stops_a_probe(self):
        bench = Bench(slots=8)
        bench.submit(*"abcdef")
        for ticket_id in "abcdef":
            bench.settle(ticket_id, OVERLOADED)
        assert bench.pool.breaker == "open"
        assert bench.pool.breaker_tries_in_s > 0
        tell(bench, Pause())
        assert bench.advance(60) == []
        assert bench.pool.breaker_tries_in_s == 0
        tell(bench, Resume())
        assert len(bench.running) == 1
        assert bench.pool.breaker_tries_in_s is None

    def test_what_is_not_paused_is_not_resumed(self):
        bench = Bench()
        bench.submit("a")
        assert not tell(bench, Resume())
        tell(bench, Pause(pool="elsewhere"))
        assert not tell(bench, Resume(pool="api.test"))
        assert tell(bench, Resume(pool="elsewhere"))
        assert not tell(bench, Resume(pool=""))

    def test_it_survives_the_merge_of_its_pool(self):
        bench = Bench()
        twin = replace(POOL, account="key-2")
        bench.submit("a")
        bench.submit("b", pool=twin)
        tell(bench, Pause(pool=str(twin)))
        bench.observe("a", account="org")
        bench.observe("b", account="org")
        assert bench.submit("c", pool=twin) == []
        assert bench.pool.paused
        tell(bench, Resume(pool=str(POOL)))
        assert "c" in bench.running


class TestLimit:
    def test_it_is_never_passed(self):
        bench = Bench(slots=4)
        bench.submit("a")
        assert tell(bench, SetLimit(limit=2))
        bench.submit("b", "c", "d")
        assert set(bench.running) == {"a", "b"}
        assert (bench.pool.limit, bench.pool.cap) == (2, 2)
        assert reasons(bench) == ["concurrency limit"] * 2

    def test_more_than_it_run_to_their_end(self):
        bench = Bench(slots=4)
        bench.submit(*"abcdef")
        tell(bench, SetLimit(limit=2))
        for ticket_id in "ab":
            bench.settle(ticket_id)
        assert set(bench.running) == {"c", "d"}
        bench.settle("c")
        assert set(bench.running) == {"d", "e"}

    def test_without_it_the_learned_limit_counts_again(self):
        bench = Bench(slots=4)
        bench.submit(*"abcdefgh")
        tell(bench, SetLimit(limit=1))
        assert tell(bench, SetLimit(limit=None))
        assert bench.pool.cap is None
        assert bench.pool.limit == 4
        assert [event.limit for event in bench.of(ConcurrencyChanged)] == [1, 4]

    def test_success_under_it_proves_nothing_about_more(self):
        bench = Bench(slots=4)
        bench.submit("first")
        tell(bench, SetLimit(limit=4))
        for number in range(100):
            bench.submit(f"t{number}")
        for _ in range(100):
            bench.settle(next(iter(bench.running)))
        tell(bench, SetLimit(limit=None))
        assert bench.pool.limit == 4

    def test_below_it_the_limit_goes_on_learning(self):
        bench = Bench(settings=PoolSettings(concurrency=ConcurrencySettings(initial=2)))
        bench.submit("first")
        tell(bench, SetLimit(limit=6))
        for number in range(100):
            bench.submit(f"t{number}")
        while len(bench.running) < 6:
            bench.advance_to_wakeup()
        assert bench.pool.limit == 6
        tell(bench, SetLimit(limit=None))
        assert bench.pool.limit == 6

    def test_overload_below_it_is_learned(self):
        bench = Bench(slots=8)
        bench.submit(*"abcdefgh")
        tell(bench, SetLimit(limit=4))
        for ticket_id in "hgfed":  # of which d was admitted as the fourth
            bench.settle(ticket_id, OVERLOADED)
        assert bench.pool.limit == 3
        (learned,) = bench.pool.learned
        assert replace(learned, meter=None) == LearnedView("overload", "3 at a time")
        assert (learned.meter.name, learned.meter.limit) == ("concurrency", 3)

    def test_none_at_all_is_a_pause(self):
        bench = Bench()
        bench.submit("a")
        for limit in (0, -1):
            assert bench.scheduler.command(SetLimit(limit=limit), 0.0) == CommandResult(Declined.LIMIT_TOO_LOW)
        assert bench.pool.cap is None

    def test_a_new_pool_has_it_too(self):
        bench = Bench()
        tell(bench, SetLimit(limit=1))
        assert bench.submit("a", "b") == ["a"]


class TestPriority:
    def test_one_for_a_while_stands_after_a_restart_and_ends(self):
        bench, fresh = Bench(), Bench(slots=1)
        assert tell(bench, SetPriority("c", Priority.HIGH, for_s=3600))
        fresh.submit("first", *"abc")
        fresh.scheduler.restore_overrides(bench.scheduler.export_overrides(0.0, 5000.0), 0.0, 8570.0)
        assert waiting(fresh) == ["c", "a", "b"]
        fresh.advance_to_wakeup()
        assert fresh.now == 30.0
        assert waiting(fresh) == ["a", "b", "c"]

    def test_those_that_wait_are_reordered_at_once(self):
        bench = Bench(slots=1)
        bench.submit("first", *"abc")
        assert tell(bench, SetPriority("c", Priority.HIGH))
        assert waiting(bench) == ["c", "a", "b"]
        assert bench.scheduler.snapshot(0.0).priorities == (PriorityView("c", Priority.HIGH),)
        assert bench.pool.tickets[1].ticket.priority is Priority.HIGH

    def test_those_that_come_have_it_too_and_what_they_ask_for_counts_no_more(self):
        bench = Bench(slots=1)
        tell(bench, SetPriority("night-*", Priority.LOW))
        bench.submit("first")
        made = replace(ticket("x", session="night-1"), priority=Priority.CRITICAL)
        bench.scheduler.submit(made, bench.settings, 0.0)
        bench.submit("y", session="day")
        assert waiting(bench) == ["y", "x"]

    def test_taken_back_it_is_as_they_ask(self):
        bench = Bench(slots=1)
        bench.submit("first", *"abc")
        tell(bench, SetPriority("c", Priority.HIGH))
        tell(bench, SetPriority("c", None))
        assert waiting(bench) == ["a", "b", "c"]
        assert bench.scheduler.snapshot(0.0).priorities == ()

    def test_one_that_ends_by_itself_is_gone_after_its_time(self):
        bench = Bench(slots=1)
        bench.submit("first", *"abc")
        assert tell(bench, SetPriority("c", Priority.HIGH, for_s=30.0))
        assert waiting(bench) == ["c", "a", "b"]
        assert bench.scheduler.snapshot(10.0).priorities == (PriorityView("c", Priority.HIGH, ends_in_s=30.0 - 10.0),)
        assert bench.scheduler.next_wakeup() == 30.0
        bench.advance(29.9)
        assert waiting(bench) == ["c", "a", "b"]
        bench.advance_to_wakeup()
        assert waiting(bench) == ["a", "b", "c"]
        assert bench.scheduler.snapshot(30.0).priorities == ()

    def test_what_was_ordered_for_good_counts_after_it_again(self):
        bench = Bench(slots=1)
        bench.submit("first")
        tell(bench, SetPriority("c", Priority.HIGH))
        bench.submit(*"abc")
        tell(bench, SetPriority("c", Priority.LOW, for_s=5.0))
        assert waiting(bench) == ["a", "b", "c"]
        bench.advance(5.0)
        assert waiting(bench) == ["c", "a", "b"]

    def test_none_stands_for_no_time_or_for_ever_and_then_ends(self):
        bench = Bench()
        for for_s in (0.0, -1.0, float("nan"), float("inf"), 1e300):
            result = bench.scheduler.command(SetPriority("c", Priority.HIGH, for_s=for_s), bench.now)
            assert result == CommandResult(Declined.BAD_SPAN)
        assert bench.scheduler.next_wakeup() is None

    def test_one_that_runs_has_it_when_it_comes_back(self):
        bench = Bench(slots=1)
        bench.submit("c")
        bench.submit("a", "b")
        tell(bench, SetPriority("c", Priority.LOW))
        bench.settle("c", after(FAILED, 0.001))
        assert set(bench.running) == {"a"}
        bench.advance(5)
        assert waiting(bench) == ["b", "c"]

    def test_fairness_is_kept_among_those_of_one_class(self):
        bench = Bench(slots=1)
        bench.submit("first")
        for number in range(6):
            bench.submit(f"a{number}", session="a")
        for number in range(6):
            bench.submit(f"b{number}", session="b")
        tell(bench, SetLimit(limit=1))
        tell(bench, SetPriority("*", Priority.HIGH))
        served = []
        for _ in range(8):
            (running,) = bench.running
            bench.now += 10
            bench.settle(running)
            served.append(next(iter(bench.running))[0])
        assert sorted(served) == ["a"] * 4 + ["b"] * 4


class TestFrontAndCancel:
    def test_front_goes_next_and_breaks_no_limit(self):
        bench = Bench(slots=1)
        bench.submit("first", *"abc")
        assert tell(bench, MoveToFront("c"))
        assert waiting(bench) == ["c", "a", "b"]
        assert set(bench.running) == {"first"}
        assert not tell(bench, MoveToFront("first"))
        assert not tell(bench, MoveToFront("nobody"))

    def test_a_queued_one_is_refused_for_good_and_its_place_is_not_kept(self):
        bench = Bench(slots=1)
        bench.submit("first", "a", "b", request_hash="h")
        assert tell(bench, Cancel("a"))
        (refused,) = bench.refused
        assert (refused.ticket.id, refused.cause) == ("a", Cancel("a"))
        assert [(event.ticket_id, event.end, event.reason) for event in bench.of(TicketEnded)] == [
            ("a", "cancelled", "cancelled by a person")
        ]
        bench.submit("again", session="a", request_hash="h")
        assert waiting(bench) == ["b", "again"]

    def test_one_that_backs_off(self):
        bench = Bench(slots=1)
        bench.submit("a")
        bench.settle("a", after(FAILED, 100))
        assert tell(bench, Cancel("a"))
        assert [one.ticket.id for one in bench.refused] == ["a"]
        assert bench.scheduler.is_idle
        assert bench.scheduler.next_wakeup() is None

    def test_a_running_one_is_named_for_its_end(self):
        bench = Bench(slots=1)
        bench.submit("a", "b")
        assert tell(bench, Cancel("a"))
        (attempt,) = bench.scheduler.drain_cancelled()
        assert attempt == bench.running["a"]
        assert bench.scheduler.drain_cancelled() == []
        bench.settle("a", CANCELLED)
        assert set(bench.running) == {"b"}

    def test_who_is_unknown_or_over_is_not_cancelled(self):
        bench = Bench(slots=1)
        bench.submit("a")
        bench.settle("a", SUCCESS)
        assert not tell(bench, Cancel("a"))
        assert not tell(bench, Cancel("nobody"))

    def test_two_words_about_one_ticket_between_two_polls_end_it_once(self):
        bench = Bench(slots=1)
        bench.submit("a", "b")
        assert bench.scheduler.command(Cancel("b"), 0.0).done
        assert not bench.scheduler.command(Cancel("b"), 0.0).done
        assert not bench.scheduler.cancel("b", 0.0)
        assert not bench.scheduler.is_idle
        assert len(bench.scheduler.poll(0.0)) == 1


class TestNobody:
    """What matches nobody stands all the same, and the name is offered that was meant."""

    def nearest(self, command):
        bench = Bench()
        made = replace(ticket("a", session="agent-1"), group="reviewers")
        bench.scheduler.submit(made, bench.settings, bench.now)
        result = bench.scheduler.command(command, bench.now)
        assert result.done
        return result.nearest

    def test_a_pool(self):
        assert self.nearest(Pause(pool="api.tset")) == "api.test"
        assert self.nearest(SetLimit(limit=3, pool="api.test/kye-1/m")) == str(POOL)
        assert self.nearest(Pause(pool="x")) == ""

    def test_an_agent_or_a_group(self):
        assert self.nearest(SetPriority("agnet-1", Priority.LOW)) == "agent-1"
        assert self.nearest(SetPriority("agnet*", None)) == "agent-1"
        assert self.nearest(SetBudget(Scope.AGENT, "agnet-1", tokens=5)) == "agent-1"
        assert self.nearest(SetBudget(Scope.GROUP, "reviewer", tokens=5)) == "reviewers"
        assert self.nearest(SetPriority("x", Priority.LOW)) == ""

    def test_who_is_known_is_not_asked_about(self):
        for command in (
            Pause(),
            Resume(),
            SetLimit(limit=2),
            Pause(pool="api.test"),
            SetPriority("agent-?", Priority.LOW),
            SetBudget(Scope.EVERYONE, tokens=5),
            SetBudget(Scope.GROUP, "reviewers", tokens=5),
        ):
            bench = Bench()
            made = replace(ticket("a", session="agent-1"), group="reviewers")
            bench.scheduler.submit(made, bench.settings, bench.now)
            if isinstance(command, Resume):
                bench.scheduler.command(Pause(), bench.now)
            assert bench.scheduler.command(command, bench.now).nearest is None
