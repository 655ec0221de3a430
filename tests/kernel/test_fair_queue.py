import random
from collections import Counter

import pytest

from hivemind_addon.kernel import heap
from hivemind_addon.kernel.order.entry import EntryState, QueueEntry
from hivemind_addon.kernel.sliced_work import whole
from hivemind_addon.kernel.values.ticket import CallKind, Priority, Reason, Usage
from tests.kernel.waiting import Line

PREFIX = {"prefix": "p", "prefix_tokens": 20_000}


class TestPlaces:
    def test_among_equals_the_first_submitted_is_the_first_served(self):
        line = Line()
        line.add("c", "a", "b")
        assert line.serve_all() == ["c", "a", "b"]

    def test_a_ticket_that_backs_off_lets_others_pass_and_keeps_its_place(self):
        line = Line()
        line.add("a", "b", "c")
        entry = line.queue.entries.get("a")
        line.queue.move(entry, 5, 0)
        line.queue.wake(4.9)
        assert line.queue.head().ticket.id == "b"
        assert line.queue.changes_at() == 5
        assert line.queue.soonest() is entry
        line.queue.wake(5)
        line.now = 5
        assert line.serve_all() == ["a", "b", "c"]

    def test_a_ticket_that_is_tried_again_goes_before_what_came_after_it(self):
        line = Line()
        line.add("a", "b", session="s")
        line.add("c")
        assert line.send() == "a"
        line.queue.put_back(line.end("a", took_s=0), 0, 0)
        assert line.serve_all() == ["a", "c", "b"]

    def test_what_an_attempt_really_took_is_charged_however_often_it_is_tried(self):
        line = Line()
        line.add("a", session="s")
        for _ in range(5):
            line.send()
            line.queue.put_back(line.end("a", took_s=0.25), line.now, line.now)
        line.send()
        line.end("a", took_s=3)
        assert line.queue._starts._agents_s["s"] == pytest.approx(5 * 0.25 + 3)

    def test_an_expedited_ticket_goes_to_the_front_and_a_later_one_before_it(self):
        line = Line()
        line.add("a", "b", "c", "d")
        line.queue.move(line.queue.entries.get("d"), 2, 0)
        for name in "bcd":
            assert line.queue.move_to_front(name, 0)
        assert [place.ticket.id for place in line.queue.in_order()] == ["d", "c", "b", "a"]
        assert line.serve_all() == ["c", "b", "d", "a"]

    def test_who_leaves_while_the_order_is_found_in_parts_is_not_in_it(self, monkeypatch):
        monkeypatch.setattr("hivemind_addon.kernel.order.fair_queue._PART", 1)
        line = Line()
        line.add("a", "b", "c", "d")
        parts = line.queue.in_order_in_parts()
        next(parts)
        line.queue.remove("b")
        line.add("e")
        assert [place.ticket.id for place in whole(parts)] == ["a", "c", "d"]

    def test_an_unknown_ticket_cannot_be_expedited_or_removed(self):
        line = Line()
        assert not line.queue.move_to_front("x", 0)
        assert line.queue.remove("x") is None

    def test_it_knows_the_next_instants(self):
        line = Line()
        assert line.queue.changes_at() == float("inf")
        line.add("a")
        assert line.queue.changes_at() == 1e9
        assert line.queue.first_to_shed(1e9 - 1) is None
        assert line.queue.first_to_shed(1e9).ticket.id == "a"

    def test_one_that_comes_back_has_its_old_place(self):
        line = Line()
        line.add("first", "second", session="s")
        line.add("rival")
        gone = line.queue.remove("first")
        line.add("late", session="s")
        again = QueueEntry(ticket=gone.ticket, wait_began_at=1)
        again.come_back_for(gone)
        line.queue.append(again, 1)
        assert line.serve_all() == ["first", "rival", "second", "late"]

    def test_one_that_comes_back_after_its_agent_was_forgotten_goes_before_newcomers(self):
        line = Line()
        line.add("gone")
        gone = line.queue.remove("gone")
        line.add(*(f"b{i}" for i in range(60)), session="busy")
        line.add(*(f"c{i}" for i in range(60)), session="too")
        for _ in range(60):
            line.serve()
        line.add("new")
        again = QueueEntry(ticket=gone.ticket, wait_began_at=line.now)
        again.come_back_for(gone)
        line.queue.append(again, line.now)
        assert line.serve() == "gone"

    def test_the_head_of_another_session_is_the_first_one_of_its_order(self):
        line = Line()
        line.add("a1", "a2", session="a")
        line.add("b1")
        line.add("c1", priority=Priority.HIGH)
        assert line.queue.head_where(lambda ticket: ticket.session != "a").ticket.id == "c1"
        assert line.queue.head_where(lambda ticket: ticket.session != "c1").ticket.id == "a1"
        line.queue.move_to_front("b1", 0)
        assert line.queue.head_where(lambda ticket: ticket.session is not None).ticket.id == "b1"
        line.queue.move(line.queue.entries.get("c1"), 9, 0)
        line.queue.remove("b1")
        assert line.queue.head_where(lambda ticket: ticket.session != "a") is None


class TestFairness:
    def test_agents_share_and_no_burst_of_a_session_holds_the_agents_others_up(self):
        line = Line()
        line.add(*(f"one{i}" for i in range(40)), agent="A", session="one")
        line.add(*(f"two{i}" for i in range(40)), agent="B", session="two")
        line.add(*(f"three{i}" for i in range(40)), agent="B", session="three")
        for _ in range(40):
            line.serve()
        served = Counter(name.rstrip("0123456789") for name in line.sent_at)
        assert served["one"] == pytest.approx(20, abs=1)
        assert served["two"] == pytest.approx(10, abs=1)

    def test_large_requests_of_one_do_not_hold_up_small_ones_of_another(self):
        line = Line()
        line.add(*(f"large{i}" for i in range(20)), session="large", seconds=10)
        line.serve()
        line.add(*(f"small{i}" for i in range(20)), session="small", seconds=0.5)
        order = [line.serve() for _ in range(21)]
        assert sum(name.startswith("small") for name in order) >= 19

    def test_small_ones_without_end_keep_a_large_one_waiting_no_longer_than_the_bound(self):
        """Newcomers with one small request each, and one that always has another: the large one goes in time."""
        line = Line()
        line.add("other", session="other")
        line.serve()
        line.add("large", seconds=40)
        ahead = 0
        while line.serve() != "large":
            ahead += 1
            line.add(f"again{ahead}", session="other", seconds=0.5)
            line.add(f"new{ahead}", seconds=0.5)
        assert ahead <= 4

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("kind", ["sessions", "sub-agents", "auxiliary", "prefixes"])
    def test_new_names_for_every_request_win_nothing(self, kind, seed):
        """Against k agents that always wait, an adversary that always waits gets its share, whatever it calls itself."""
        rng = random.Random(seed)
        line = Line()
        honest = [f"h{i}" for i in range(rng.randint(1, 8))]
        sent: Counter[str] = Counter()
        numbers = iter(range(10**6))

        def submit(agent: str) -> None:
            number = next(numbers)
            more: dict = {}
            session = agent
            if agent == "evil":
                session = f"fresh{number}"
                match kind:
                    case "sub-agents":
                        more = {"parent_session": f"parent{rng.randrange(50)}"}
                    case "auxiliary":
                        more = {"kind": rng.choice([CallKind.AUXILIARY, CallKind.TURN])}
                    case "prefixes":
                        more = {"prefix": f"p{rng.randrange(9)}", "prefix_tokens": 50_000, "cached_tokens": 50_000}
            seconds = rng.uniform(0.2, 5)
            line.add(f"{agent}-{number}", agent=agent, session=session, seconds=seconds, **more)

        for agent in [*honest, "evil"]:
            for _ in range(12 if agent == "evil" else 2):
                submit(agent)
        while line.now < 6000:
            name = line.send()
            place = line.running[name]
            seconds = place.ticket.demand.input_tokens / 1000
            line.begin(name)
            line.now += seconds
            line.end(name)
            sent[place.ticket.agent] += seconds
            submit(place.ticket.agent)
        share = sum(sent.values()) / (len(honest) + 1)
        assert sent["evil"] <= 1.1 * share
        assert min(sent[agent] for agent in honest) >= 0.9 * share

    def test_an_agents_weight_multiplies_its_share(self):
        line = Line()
        line.add(*(f"a{i}" for i in range(100)), session="a", weight=3.0)
        line.add(*(f"b{i}" for i in range(100)), session="b")
        for _ in range(80):
            line.serve()
        assert sum(name.startswith("a") for name in line.sent_at) == pytest.approx(60, abs=2)


class TestClasses:
    def test_a_higher_class_goes_first(self):
        line = Line()
        line.add("low", priority=Priority.LOW)
        line.add("normal")
        line.add("high", priority=Priority.HIGH)
        line.add("critical", priority=Priority.CRITICAL)
        line.add("title", kind=CallKind.AUXILIARY, priority=Priority.CRITICAL)
        assert line.serve_all() == ["critical", "high", "normal", "low", "title"]

    def test_a_class_is_a_lead_and_no_right_of_way(self):
        line = Line()
        line.add("low", priority=Priority.LOW)
        line.add(*(f"n{i}" for i in range(200)), session="n")
        order = line.serve_all()
        assert 25 <= order.index("low") <= 40

    def test_within_a_session_too_and_there_too_it_is_a_lead(self):
        line = Line()
        line.add("low", session="s", priority=Priority.LOW)
        line.add("normal", session="s")
        assert line.serve() == "normal"
        line.now += 31
        line.add("later", session="s")
        assert line.serve() == "low"

    def test_auxiliary_calls_wait_for_all_others_but_not_for_ever(self):
        line = Line()
        line.add("title", session="s", kind=CallKind.AUXILIARY)
        line.add("turn", session="s")
        line.add(*(f"n{i}" for i in range(200)), session="n")
        order = line.serve_all()
        assert 55 <= order.index("title") <= 75

    @pytest.mark.parametrize("kind", [CallKind.COMPACTION, CallKind.CLASSIFIER])
    def test_what_a_session_waits_for_keeps_its_place(self, kind):
        line = Line()
        line.add("first", session="s", kind=kind)
        line.add("second", session="s")
        assert line.serve_all() == ["first", "second"]


class TestSubAgents:
    def test_no_more_sub_agents_run_than_their_agent_was_granted_and_others_pass(self):
        line = Line()
        line.add(*(f"c{i}" for i in range(9)), session="c", agent="A", parent_session="root", max_fan_out=3)
        line.add("own", session="root", agent="A")
        line.add("other")
        assert sorted(line.send_all()) == ["c0", "c1", "c2", "other", "own"]
        assert line.queue.why_passed(line.queue.entries.get("c3")) is Reason.FAN_OUT
        line.queue.put_back(line.end("c0"), 0, 0)
        assert line.send_all() == ["c0"], "tried again, in the place of the first attempt"
        line.queue.move_to_front("c4", 0)
        assert line.send_all() == ["c4"], "a person knows better"
        line.end("c0")
        assert line.send_all() == []
        line.end("c1")
        assert line.send_all() == ["c3"]

    def test_one_that_was_granted_no_cap_has_none(self):
        line = Line()
        line.add(*(f"c{i}" for i in range(99)), session="c", parent_session="root")
        assert len(line.send_all()) == 99

    def test_sub_agents_of_sub_agents_count_in_the_same_tree(self):
        line = Line()
        line.add("c", session="s.1", agent="A", parent_session="s", max_fan_out=2)
        line.add("g", "h", session="s.1.1", agent="A", parent_session="s.1", max_fan_out=2)
        line.add("b", session="s.1.1", agent="B", parent_session="s.1", max_fan_out=2)
        assert line.send_all() == ["c", "b", "g"]

    def test_a_background_call_is_paid_by_its_agent(self):
        line = Line()
        line.add("title", agent="A", session="s", seconds=6, kind=CallKind.AUXILIARY)
        line.add("other")
        assert line.serve_all() == ["other", "title"]
        line.add("later", agent="A", session="s", kind=CallKind.AUXILIARY)
        line.add("rival", kind=CallKind.AUXILIARY)
        assert line.serve_all()[-1] == "rival", "a new busy period: nobody owes anything"


class TestLeader:
    def test_one_goes_and_the_others_when_its_answer_begins(self):
        line = Line()
        line.add("a", "b", "c", **PREFIX)
        line.add("x")
        assert line.send_all() == ["a", "x"]
        assert line.queue.why_passed(line.queue.entries.get("b")) is Reason.LEADER
        assert line.queue.changes_at() == 5
        line.now = 1
        line.begin("a")
        assert line.send_all() == ["b", "c"]

    def test_or_a_few_seconds_after_it_was_sent(self):
        line = Line()
        line.add("a", "b", **PREFIX)
        line.now = 100
        assert line.send_all() == ["a"]
        line.add("c", **PREFIX)
        line.now = 104.9
        assert line.send_all() == []
        line.now = 105
        assert line.send_all() == ["b", "c"]

    @pytest.mark.parametrize("answered", [True, False])
    def test_a_leader_that_ends_hands_over_at_once(self, answered):
        line = Line()
        line.add("a", "b", "c", **PREFIX)
        line.send_all()
        line.now = 1
        line.end("a", answered=answered)
        assert line.send_all() == ["b"]
        line.now = 5.5
        assert line.send_all() == []
        line.now = 6
        assert line.send_all() == ["c"]

    def test_a_leader_that_backs_off_follows_the_next_one(self):
        line = Line()
        line.add("a", "b", **PREFIX)
        line.send_all()
        line.queue.put_back(line.end("a", answered=False, took_s=0), 2, 0)
        assert line.send_all() == ["b"]
        line.now = 2
        assert line.send_all() == []
        line.begin("b")
        assert line.send_all() == ["a"]

    def test_a_refusals_head_that_seemed_an_answer_leaves_the_prefix_cold(self):
        line = Line()
        line.add("a", "b", "c", **PREFIX)
        line.send_all()
        line.begin("a")
        line.end("a", answered=False)
        assert line.send_all() == ["b"]

    def test_an_expedited_follower_waits_for_nobody(self):
        line = Line()
        line.add("a", "b", "c", **PREFIX)
        assert line.send_all() == ["a"]
        line.queue.move_to_front("b", 0)
        assert line.send_all() == ["b"]

    def test_a_follower_that_goes_away_leaves_nothing_behind(self):
        line = Line()
        line.add("a", "b", **PREFIX)
        line.send_all()
        line.queue.remove("b")
        assert line.queue.changes_at() == float("inf")
        assert len(line.queue) == 0

    def test_followers_of_one_session_let_its_other_tickets_pass(self):
        line = Line()
        line.add("a", session="s", **PREFIX)
        line.add("b", session="s", **PREFIX)
        line.add("c", session="s")
        assert line.send_all() == ["a", "c"]
        line.begin("a")
        assert line.send_all() == ["b"]


class TestAffinity:
    def test_a_warm_session_goes_before_a_cold_one_by_what_it_saves(self):
        line = Line()
        line.add("warm1", session="warm", cached_tokens=10_000)
        line.serve()
        line.add("cold", cached_tokens=10_000)
        line.add("warm2", session="warm", cached_tokens=10_000)
        assert line.serve_all() == ["warm2", "cold"]

    def test_a_warm_session_has_no_lead_until_its_entry_is_about_as_old_as_others_that_were_read(self):
        line = Line()
        line.queue.cache.lifetime.learn(0.5, 1.0)
        line.add("warm1", session="warm", cached_tokens=10_000)
        line.serve()
        line.add("cold", cached_tokens=10_000)
        line.add("warm2", session="warm", cached_tokens=10_000)
        assert line.queue.head().ticket.id == "cold"
        line.now = 145
        assert line.serve_all() == ["warm2", "cold"]

    def test_a_waiting_ticket_loses_its_lead_when_answers_show_that_its_entry_is_cold(self):
        line = Line()
        for session in ("a", "b"):
            line.add(f"{session}1", session=session, cached_tokens=10_000)
            line.serve()
        line.now = 100
        line.add("cold")
        line.add("a2", session="a", cached_tokens=10_000)
        line.add("b2", session="b", cached_tokens=10_000)
        assert line.send() == "a2"
        line.begin("a2")
        assert line.queue.head().ticket.id == "b2"
        line.end("a2", usage=Usage(input_tokens=10_000, reported=True))
        assert line.queue.head().ticket.id == "cold"

    def test_no_more_than_a_bound(self):
        line = Line()
        line.add("warm", session="warm", cached_tokens=10**7)
        line.serve()
        line.add(*(f"w{i}" for i in range(200)), session="warm", cached_tokens=10**7)
        line.add(*(f"c{i}" for i in range(200)), session="cold")
        order = line.serve_all()
        assert 50 <= order.index("c0") <= 65

    def test_a_ticket_that_waits_while_its_prefix_warms_moves_forward(self):
        line = Line()
        line.add("writer", session="s", cached_tokens=10_000)
        assert line.send() == "writer"
        line.add("cold")
        line.add("reader", session="s", cached_tokens=10_000)
        assert line.queue.head().ticket.id == "cold"
        line.begin("writer")
        assert line.queue.head().ticket.id == "reader"

    def test_a_prefix_that_lapsed_moves_nobody(self):
        line = Line()
        line.add("first", session="warm", cached_tokens=10_000)
        line.serve()
        line.add("cold")
        line.add("late", session="warm", cached_tokens=10_000)
        line.now = 299
        line.queue.wake(line.now)
        assert line.queue.head().ticket.id == "late"
        line.now = 300
        line.queue.wake(line.now)
        assert line.queue.head().ticket.id == "cold"

    def test_a_session_whose_prefix_is_about_to_lapse_goes_in_time(self):
        line = Line()
        line.add("old", session="old", cached_tokens=40_000)
        line.serve()
        line.now = 200
        line.add("young", session="young", cached_tokens=50_000)
        line.serve()
        line.add("hurry", session="old", cached_tokens=40_000)
        line.add(*(f"y{i}" for i in range(50)), session="young", cached_tokens=50_000)
        line.now = 289
        line.queue.wake(line.now)
        assert line.queue.head().ticket.id != "hurry"
        line.now = 290
        assert line.serve() == "hurry"


class TestBounds:
    @pytest.mark.parametrize("seed", range(20))
    def test_no_agent_is_served_more_than_the_bound_before_one_that_waits(self, seed):
        """Whatever leads the others have: service ahead <= 2 * (largest difference of bonuses + one cost)."""
        rng = random.Random(seed)
        line = Line()
        settings = line.settings
        bound_s = 2 * (3 * settings.class_lead_s + settings.affinity_s + 6)
        agents = [f"a{i}" for i in range(rng.randint(2, 6))]
        count = 0

        def submit(agent: str) -> None:
            nonlocal count
            count += 1
            line.add(
                f"{agent}-{count}",
                agent=agent,
                session=f"{agent}{rng.randrange(3)}",
                seconds=rng.uniform(0.1, 6),
                priority=rng.choice(list(Priority)[:3]),
                cached_tokens=rng.choice([0, 90_000]),
                parent_session=rng.choice(["", f"{agent}0"]),
            )

        for agent in agents:
            for _ in range(4):
                submit(agent)
        for _ in range(rng.randint(0, 300)):
            submit(line.serve().split("-")[0])
        line.add("me", priority=Priority.LOW)
        ahead: Counter[str] = Counter()
        while (name := line.send()) != "me":
            place = line.running[name]
            cost_s = place.ticket.demand.input_tokens / 1000
            weight = {Priority.CRITICAL: 4, Priority.HIGH: 2, Priority.NORMAL: 1, Priority.LOW: 0.5}
            ahead[place.ticket.agent] += cost_s / weight[place.ticket.priority]
            line.now += cost_s
            line.end(name)
            submit(place.ticket.agent)
        assert max(ahead.values(), default=0) <= bound_s

    def test_a_slot_never_idles_while_anybody_could_go(self):
        rng = random.Random(3)
        line = Line()
        for number in range(300):
            line.add(
                f"t{number}",
                agent=f"a{rng.randrange(5)}",
                session=f"s{rng.randrange(9)}",
                parent_session=rng.choice(["", "", "s1"]),
                max_fan_out=2,
                **rng.choice([{}, {}, PREFIX]),
            )
        while len(line.queue):
            if line.send() is None:
                passed = [line.queue.why_passed(place) for place in line.queue.in_order()]
                assert None not in passed
                assert line.running
                line.now += 0.5
                line.end(rng.choice(list(line.running)))
            elif len(line.running) > 6:
                line.end(rng.choice(list(line.running)))

    def test_the_forecast_is_what_comes(self):
        rng = random.Random(5)
        line = Line()
        for number in range(60):
            line.add(
                f"t{number}",
                agent=f"a{rng.randrange(4)}",
                session=f"s{rng.randrange(8)}",
                seconds=rng.uniform(0.5, 3),
                priority=rng.choice([Priority.NORMAL, Priority.LOW]),
            )
        forecast = [place.ticket.id for place in line.queue.in_order()]
        line.queue.move_to_front("t50", 0)
        assert line.queue.in_order()[0].ticket.id == "t50"
        line.queue.wake(0)
        order = line.serve_all()
        forecast.remove("t50")
        order.remove("t50")
        off = [abs(order.index(name) - place) for place, name in enumerate(forecast)]
        assert sum(off) / len(off) <= 3


class TestCosts:
    def test_operations_on_heaps_do_not_grow_with_the_queue(self, monkeypatch):
        """Each is O(log n); so a turn costs O(log n) when their number per turn stays the same."""
        per_turn = [self.operations(monkeypatch, queued) for queued in (100, 1000, 10_000)]
        assert max(per_turn) <= 1.3 * per_turn[0]
        assert max(per_turn) < 60

    def operations(self, monkeypatch, queued: int, turns: int = 500) -> float:
        line = Line()
        rng = random.Random(1)
        numbers = iter(range(10**6))

        def submit() -> None:
            number = next(numbers)
            agent = f"a{rng.randrange(queued // 10)}"
            line.add(f"t{number}", agent=agent, session=f"{agent}.{rng.randrange(4)}", seconds=rng.uniform(0.1, 5))

        for _ in range(queued):
            submit()
        counted = _Counted()
        monkeypatch.setattr(heap, "heapq", counted)
        for _ in range(turns):
            line.serve()
            submit()
        monkeypatch.undo()
        return counted.operations / turns

    def test_what_has_ended_leaves_nothing_behind(self):
        line = Line()
        for number in range(3000):
            line.add(f"t{number}", agent=f"a{number}", session=f"s{number}", parent_session=f"s{number - 1}", **PREFIX)
            line.add(f"u{number}", agent="same", session=f"s{number}", kind=CallKind.AUXILIARY)
            line.serve()
            line.serve()
        assert len(line.queue) == 0
        assert not line.queue._cached
        assert not line.queue._aside
        assert not line.queue._agents
        assert not line.queue._running
        assert not line.queue._starts._tickets_s
        assert len(line.queue._starts._agents_s) <= 600


class _Counted:
    """The operations of `heapq`; one that touches all items counts as many."""

    def __init__(self) -> None:
        self.operations = 0
        self._real = heap.heapq

    def heappush(self, items: list, item: object) -> None:
        self.operations += 1
        self._real.heappush(items, item)

    def heappop(self, items: list) -> object:
        self.operations += 1
        return self._real.heappop(items)

    def heapreplace(self, items: list, item: object) -> object:
        self.operations += 1
        return self._real.heapreplace(items, item)

    def heapify(self, items: list) -> None:
        self.operations += len(items)
        self._real.heapify(items)


def test_a_follower_goes_where_the_breaker_has_chosen_it_as_its_probe():
    line = Line()
    line.add("leader", "follower", prefix="p", prefix_tokens=50_000)
    assert line.send() == "leader"
    assert line.send() is None
    entry = line.queue.entries.get("follower")
    assert entry.state is EntryState.ASIDE
    line.send_place(entry)
    assert entry.state is EntryState.IN_FLIGHT
    line.end("follower")
    line.end("leader")
    assert len(line.queue) == 0


class TestPoolsThatProveToBeOne:
    def test_the_tickets_of_both_go_in_the_order_in_which_they_came(self):
        one, two = Line(), Line()
        one.add("a1", session="a")
        two.now = 1
        two.add("b1", "b2", session="b")
        two.queue.move_to_front("b2", 1)
        one.now = two.now = 3
        two.add("flying", session="f")
        two.queue.wake(3)
        two.send_place(two.queue.entries.get("flying"))
        moved = two.queue.take_all()
        assert (len(two.queue), {entry.state for entry in moved}) == (0, {EntryState.NEW})
        for entry in two.running.values():
            one.queue.adopt(entry, entry.charged_s, 3)
        for entry in moved:
            one.queue.append(entry, 3)
        one.running |= two.running
        one.end("flying")
        assert one.serve_all() == ["b2", "a1", "b1"], "a person moved one to the front"
