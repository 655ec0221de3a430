from dataclasses import replace

from hivemind_addon.lab.replay.compare import difference, in_words
from hivemind_addon.lab.replay.schedule import Decision, ReplaySettings, Schedule, Totals


def sent(at_s, agent, call, how="attempt 1"):
    return Decision(at_s, agent, call, "sent", how)


ROWS = tuple(sent(float(n), f"agent-{n % 3}", f"c{n}") for n in range(12))
TOTALS = Totals(3, 0, 14.0, 12, 0, {"agent-0": 12.0, "agent-1": 13.0, "agent-2": 14.0})
EXPECTED = Schedule(ReplaySettings(), TOTALS, ROWS)


def changed(place, *rows, drop=1):
    return replace(EXPECTED, decisions=(*ROWS[:place], *rows, *ROWS[place + drop :]))


def words(now):
    found = difference(EXPECTED, now)
    assert found is not None
    return in_words(found)


def test_a_schedule_does_not_differ_from_itself():
    assert difference(EXPECTED, EXPECTED) is None


def test_another_machines_rounding_is_no_other_decision():
    assert difference(EXPECTED, changed(4, sent(4.001, "agent-1", "c4"))) is None
    waited = replace(EXPECTED, decisions=(sent(1, "a", "c", "attempt 1, waited 1.500 s: rate limit"),))
    rounded = replace(EXPECTED, decisions=(sent(1, "a", "c", "attempt 1, waited 1.501 s: rate limit"),))
    assert difference(waited, rounded) is None


def test_another_reason_or_attempt_is_another_decision():
    assert difference(EXPECTED, changed(4, sent(4, "agent-1", "c4", "attempt 2"))).moved == 1
    assert "comes when it should, but otherwise" in words(changed(4, sent(4, "agent-1", "c4", "attempt 2")))


def test_a_later_admission_is_told_with_the_lines_around_it():
    text = words(changed(4, sent(4.75, "agent-1", "c4", "attempt 1, waited 0.750 s: rate limit")))
    assert text.splitlines() == [
        "the schedule first differs at 4.000 s, in decision 5 of 12:",
        "  expected       4.000 s  agent-1  c4  sent (attempt 1)",
        "  now            4.750 s  agent-1  c4  sent (attempt 1, waited 0.750 s: rate limit)",
        "  call c4 of agent-1 comes 0.750 s later",
        "",
        "around it (- expected, + now):",
        "         1.000 s  agent-1  c1  sent (attempt 1)",
        "         2.000 s  agent-2  c2  sent (attempt 1)",
        "         3.000 s  agent-0  c3  sent (attempt 1)",
        "  -      4.000 s  agent-1  c4  sent (attempt 1)",
        "  +      4.750 s  agent-1  c4  sent (attempt 1, waited 0.750 s: rate limit)",
        "         5.000 s  agent-2  c5  sent (attempt 1)",
        "         6.000 s  agent-0  c6  sent (attempt 1)",
        "         7.000 s  agent-1  c7  sent (attempt 1)",
        "         8.000 s  agent-2  c8  sent (attempt 1)",
        "",
        "in all: 1 moved, 0 gone, 0 new of 12 decisions",
    ]


def test_a_call_that_passes_another_is_told_of_both():
    text = words(changed(4, sent(4, "agent-2", "c5"), sent(6, "agent-1", "c4"), drop=2))
    assert "call c4 of agent-1 is now at 6.000 s, 2.000 s later" in text
    assert "call c5 of agent-2 was expected at 5.000 s, 1.000 s later" in text


def test_two_that_change_places_at_one_instant_are_another_order():
    first, second = sent(4, "agent-1", "c4"), sent(4, "agent-2", "c5")
    text = in_words(difference(changed(4, first, second, drop=2), changed(4, second, first, drop=2)))
    assert "call c4 of agent-1 is now at 4.000 s, too: their order differs" in text


def test_decisions_that_are_gone_or_new_are_counted():
    assert "1 gone, 0 new" in words(changed(4))
    assert "call c4 of agent-1 is now never made" in words(changed(4))
    more = words(replace(EXPECTED, decisions=(*ROWS, sent(12, "agent-0", "c12"))))
    assert "expected  nothing: it is over" in more
    assert "call c12 of agent-0 was not expected at all" in more


def test_what_came_of_it_is_compared_too():
    totals = Totals(3, 1, 16.0, 12, 2, {"agent-0": 12.0, "agent-1": 15.5})
    lines = words(replace(EXPECTED, totals=totals)).splitlines()
    assert lines == [
        "all decisions are the same, but not what came of them",
        "  agents lost: 0 → 1",
        "  refused by rate limits: 0 → 2",
        "  all over: 14.000 s → 16.000 s",
        "  agents that end at another time: 0 → 1 later, 0 earlier; farthest agent-1, +2.500 s",
    ]
