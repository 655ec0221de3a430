from hivemind_addon.proxy.journal.tables import AttemptRow, TicketRow
from hivemind_addon.tools.history.verdict import AttemptFate, fate_of, verdict


def attempt(number=1, outcome="success", **values) -> AttemptRow:
    return AttemptRow("a1", number, 0.0, outcome=outcome, **values)


def ticket(end="delivered", reason="") -> TicketRow:
    names = dict.fromkeys(TicketRow.__struct_fields__[2:15], "")
    return TicketRow(id="a1", run=1, **names, streamed=True, arrived=0.0, end=end, reason=reason)


def test_what_became_of_an_attempt():
    cases = (
        (attempt(outcome="success", status=200), AttemptFate.RAN),
        (attempt(outcome=""), AttemptFate.RUNS),
        (attempt(outcome="lost"), AttemptFate.MAY_HAVE_RUN),
        (attempt(outcome="failed", ambiguous=True), AttemptFate.MAY_HAVE_RUN),
        (attempt(outcome="overloaded", status=200), AttemptFate.MAY_HAVE_RUN),
        (attempt(outcome="overloaded", status=529), AttemptFate.DID_NOT_RUN),
        (attempt(outcome="failed"), AttemptFate.DID_NOT_RUN),
        (attempt(outcome="ignored", status=400), AttemptFate.DID_NOT_RUN),
        (attempt(outcome="cancelled", tokens=2000), AttemptFate.MAY_HAVE_RUN),
        (attempt(outcome="cancelled"), AttemptFate.DID_NOT_RUN),
    )
    assert [(one, fate) for one, fate in cases if fate_of(one) is not fate] == []


REFUSED = attempt(outcome="throttled", status=429, reason="429 rate_limit_error")
CUT = attempt(outcome="failed", reason="cut in the middle of the answer", ambiguous=True)


def test_the_verdict():
    cases = (
        ([ticket()], [attempt()], "ran once"),
        ([ticket()], [REFUSED, attempt(2)], "ran once; 1 attempt failed without running"),
        ([ticket(), ticket()], [attempt(), attempt()], "ran twice"),
        ([ticket(), ticket(), ticket()], [attempt()] * 3, "ran 3 times"),
        (
            [ticket()],
            [CUT, attempt(2)],
            "ran once and may have run once more; attempt 1: cut in the middle of the answer",
        ),
        (
            [ticket("lost", "its proxy died")],
            [attempt(outcome="lost", reason="its proxy died")],
            "may have run once; its proxy died while attempt 1 was under way",
        ),
        ([ticket("gave up")], [CUT, CUT], "may have run, at most twice; attempt 1: cut in the middle of the answer"),
        ([ticket("lost", "its proxy died")], [], "never ran: its proxy died while it waited"),
        ([ticket("refused", "budget spent")], [], "never ran: refused (budget spent)"),
        (
            [ticket("gave up", "attempts spent: 429 rate_limit_error")],
            [REFUSED],
            "never ran: gave up after 1 failed attempt (attempts spent: 429 rate_limit_error)",
        ),
        ([ticket("cancelled", "client went")], [], "never ran: cancelled (client went)"),
        ([ticket("")], [], "has not run yet, and waits now"),
        ([ticket("")], [attempt(outcome="")], "runs now"),
        (
            [ticket("")],
            [CUT, attempt(2, outcome="")],
            "may have run once, and runs now; attempt 1: cut in the middle of the answer",
        ),
        ([ticket("shed"), ticket()], [attempt()], "ran once"),
    )
    assert [
        (tickets, attempts, words) for tickets, attempts, words in cases if verdict(tickets, attempts) != words
    ] == []
