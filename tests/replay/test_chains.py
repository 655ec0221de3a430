"""Dependencies are what instants tell: who came behind whom, who was waited for."""

from hivemind_addon.api.ticket import CallKind, OutcomeKind
from hivemind_addon.lab.replay.chains import chained
from tests.cases import over
from tests.replay.nights import attempt, call


def after(*calls):
    return {turn.id: sorted(other.id for other in turn.after) for turn in chained(calls)}


def failed(name, at_s, **more):
    return call(name, at_s, attempts=(attempt(at_s, took_s=1, kind=OutcomeKind.OVERLOADED, status=529),), **more)


def test_calls_of_one_session_follow_each_other_after_their_think_time():
    turns = chained([call("1", 0), call("2", 3), call("3", 9)])
    assert [[other.id for other in turn.after] for turn in turns] == [[], ["1"], ["2"]]
    assert [turn.think_s for turn in turns] == [0, 1, 4]


def test_sessions_know_nothing_of_each_other():
    assert after(call("1", 0), call("2", 3, agent="b")) == {"1": [], "2": []}


def test_calls_that_overlap_are_a_fork_and_what_comes_behind_both_is_a_join():
    calls = call("1", 0), call("left", 3), call("right", 3.1, took_s=8), call("join", 12)
    assert after(*calls) == {"1": [], "left": ["1"], "right": ["1"], "join": ["left", "right"]}


def test_two_conversations_beside_each_other_are_told_apart_by_their_prompts():
    calls = [call(f"a{n}", 4 * n, prefix="a") for n in range(3)]
    calls += [call(f"b{n}", 4 * n + 1, took_s=2.5, prefix="b") for n in range(3)]
    found = after(*calls)
    assert (found["a1"], found["a2"]) == (["a0"], ["a1"])
    assert (found["b1"], found["b2"]) == (["b0"], ["b1"])


def test_two_conversations_that_nothing_tells_apart_stay_two():
    calls = [call(f"a{n}", 4 * n) for n in range(3)] + [call(f"b{n}", 4 * n + 1, took_s=2.5) for n in range(3)]
    followed = [other for others in after(*calls).values() for other in others]
    assert len(followed) == len(set(followed)) == 4


def test_nobody_waits_for_a_title():
    calls = call("1", 0), call("title", 3, took_s=1, kind=CallKind.AUXILIARY), call("2", 5)
    assert after(*calls) == {"1": [], "title": ["1"], "2": ["1"]}


def test_a_client_may_send_a_moment_before_its_last_answer_is_booked():
    turns = chained([call("1", 0, took_s=2.02), call("2", 2)])
    assert [other.id for other in turns[1].after] == ["1"]
    assert turns[1].think_s == 0


def test_what_a_client_sends_again_after_a_failure_is_one_turn():
    (turn,) = chained(
        [failed("1", 0, request_hash="x"), failed("2", 3, request_hash="x"), call("3", 6, request_hash="x")]
    )
    assert (turn.id, turn.is_delivered, turn.ended_s) == ("1", True, 8)
    assert [one.status for one in turn.attempts] == [529, 529, 200]


def test_what_was_answered_and_is_asked_again_is_another_turn():
    assert after(call("1", 0, request_hash="x"), call("2", 3, request_hash="x")) == {"1": [], "2": ["1"]}


def test_a_sub_agent_follows_its_parents_turn_and_the_parent_waits_for_it():
    calls = (
        call("lead", 0),
        call("sub1", 3, agent="s", parent_session="a"),
        call("sub2", 6, agent="s", parent_session="a"),
        call("next", 9),
    )
    assert after(*calls) == {"lead": [], "sub1": ["lead"], "sub2": ["sub1"], "next": ["lead", "sub2"]}


def test_a_parent_that_goes_on_waits_for_no_sub_agent():
    calls = call("lead", 0), call("sub", 3, agent="s", parent_session="a", took_s=20), call("next", 5)
    assert after(*calls) == {"lead": [], "sub": ["lead"], "next": ["lead"]}


def test_a_sub_agent_without_a_parent_in_the_capture_stands_alone():
    assert after(call("sub", 3, parent_session="gone"), call("own", 4, agent="b", parent_session="b")) == {
        "sub": [],
        "own": [],
    }


@over("apart_s", [0.0, 0.01, 0.04])
def test_nothing_waits_for_itself_even_when_everything_happens_at_once(apart_s):
    calls = [call(f"{n}", n * apart_s, took_s=0.0, parent_session="b" if n % 2 else "") for n in range(4)]
    calls += [call(f"b{n}", n * apart_s, took_s=0.0, agent="b", parent_session="a") for n in range(4)]
    waits_for = after(*calls)
    done = set()
    while len(done) < len(waits_for):
        ready = {name for name, others in waits_for.items() if name not in done and done >= set(others)}
        assert ready
        done |= ready
