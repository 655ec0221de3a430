from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.plugins.captures.rows import SessionCell, rows
from tests.plugins.captures.samples import make_attempt, make_call, make_capture


def failed(**changes):
    return make_attempt(kind=OutcomeKind.OVERLOADED, reason="529", status=529, **changes)


def test_a_row_shows_waiting_trying_failing_and_answering_in_their_places():
    call = make_call(
        ended_s=10.0,
        attempts=(failed(at_s=2.0, ended_after_s=1.9), make_attempt(2, at_s=6.0, ended_after_s=3.9)),
    )
    (row,) = rows(make_capture(call), 10)
    q, a, t, f = SessionCell.QUEUED, SessionCell.ANSWERED, SessionCell.TRIED, SessionCell.FAILED
    assert row.cells == (q, q, t, f, q, q, a, a, a, a)
    assert (row.calls, row.retries, row.lost) == (1, 1, 0)


def test_a_call_without_an_answer_is_seen_at_its_end():
    call = make_call(ended_s=10.0, end="shed", attempts=())
    (row,) = rows(make_capture(call), 10)
    assert row.cells == (*[SessionCell.QUEUED] * 9, SessionCell.LOST)
    assert row.lost == 1


def test_who_hangs_up_is_not_lost():
    (row,) = rows(make_capture(make_call(end="cancelled", attempts=())), 10)
    assert row.lost == 0


def test_sub_agents_stand_below_who_started_them():
    calls = [
        make_call("1", session="a"),
        make_call("2", session="b", at_s=0.5),
        make_call("3", session="a/1", parent_session="a", at_s=1.0),
        make_call("4", session="a/1/x", parent_session="a/1", at_s=2.0),
        make_call("5", session="lost", parent_session="nobody", at_s=3.0),
    ]
    assert [(row.session, row.depth) for row in rows(make_capture(*calls), 10)] == [
        ("a", 0),
        ("a/1", 1),
        ("a/1/x", 2),
        ("b", 0),
        ("lost", 0),
    ]


def test_sessions_that_name_each_other_as_parents_are_all_shown():
    calls = [make_call("1", session="a", parent_session="b"), make_call("2", session="b", parent_session="a")]
    assert sorted(row.session for row in rows(make_capture(*calls), 10)) == ["a", "b"]


def test_a_moment_is_seen_however_long_the_night_was():
    short = make_call("1", attempts=(make_attempt(at_s=0.0, ended_after_s=0.01),), ended_s=0.01)
    late = make_call("2", session="b", at_s=36_000.0, ended_s=36_004.0, attempts=(make_attempt(at_s=36_000.0),))
    first, second = rows(make_capture(short, late), 20)
    assert first.cells[0] is SessionCell.ANSWERED
    assert second.cells[-1] is SessionCell.ANSWERED
    assert sum(cell is not SessionCell.NOTHING for cell in first.cells) == 1
