"""Trees of sessions and who pays; fairness among agents is in test_fair_queue.py."""

import pytest

from hivemind_addon.kernel.values.ticket import CallKind, Reason
from tests.kernel.waiting import Line


def start_of(line: Line, agent: str, *, background: bool = False) -> float:
    return line.queue._lanes._agents.by_name.get((agent, background)).start_s


class TestLineage:
    def test_a_tree_has_the_share_of_one_session(self):
        line = Line()
        for child in range(10):
            line.add(*(f"tree{child}.{i}" for i in range(10)), session=f"c{child}", agent="A", parent_session="root")
        line.add(*(f"plain{i}" for i in range(60)), session="plain", agent="A")
        for _ in range(80):
            line.serve()
        assert sum(name.startswith("tree") for name in line.sent_at) == pytest.approx(40, abs=10)

    def test_no_more_sub_agents_run_than_their_agent_was_granted_and_others_pass(self):
        line = Line()
        line.add(*(f"c{i}" for i in range(9)), session="c", agent="A", parent_session="root", max_fan_out=3)
        line.add("own", session="root", agent="A")
        line.add("other")
        assert sorted(line.send_all()) == ["c0", "c1", "c2", "other", "own"]
        assert line.queue.why_passed(line.queue.get("c3")) is Reason.FAN_OUT
        line.end("c0")
        assert line.send_all() == ["c3"]

    def test_one_that_was_granted_no_cap_has_none(self):
        line = Line()
        line.add(*(f"c{i}" for i in range(99)), session="c", parent_session="root")
        assert len(line.send_all()) == 99

    def test_a_child_that_is_known_before_its_grandparent_stays_where_it_is(self):
        line = Line()
        line.add("g", session="s.1.1", agent="A", parent_session="s.1")
        line.add("c", session="s.1", agent="A", parent_session="s")
        line.add("r", session="s", agent="A")
        trees = line.queue._lanes._agents.by_name.get(("A", False)).trees
        assert trees.by_name.get("s.1").sessions == ["s.1.1", "s.1", "s"]
        assert sorted(line.serve_all()) == ["c", "g", "r"]

    def test_sessions_of_one_name_but_of_two_agents_are_two(self):
        line = Line()
        line.add(*(f"a{i}" for i in range(10)), agent="A", session="main")
        line.add("b", agent="B", session="main")
        assert "b" in [line.serve() for _ in range(2)]


class TestPaying:
    def test_a_background_call_is_paid_by_its_agent_too(self):
        line = Line()
        line.add("title", agent="A", session="s", seconds=6, kind=CallKind.AUXILIARY)
        line.serve()
        assert start_of(line, "A", background=True) == start_of(line, "A") == pytest.approx(2)

    def test_an_attempt_that_took_nothing_leaves_no_debt(self):
        line = Line()
        line.add("a", "b", session="s", seconds=5)
        line.send()
        line.end("a", took_s=0)
        assert start_of(line, "s") == pytest.approx(-4)
        line.send()
        line.end("b", took_s=1.5)
        assert start_of(line, "s") == pytest.approx(-2.5)
