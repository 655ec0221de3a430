import logging
from typing import get_args

import pytest
from msgspec import structs

from hivemind_addon.api import events
from hivemind_addon.api.spend import Budget, Period, Scope, Spend
from hivemind_addon.api.ticket import Demand, Outcome, OutcomeKind, PoolKey, Reason, Ticket
from hivemind_addon.proxy.observe.news import News, describe

POOL = PoolKey("host.test", "key-1", "model")
TICKET = Ticket(
    id="ticket-1",
    pool=POOL,
    agent="agent-1",
    session="s",
    model="m",
    demand=Demand(),
    arrived_at=0,
    deadline_at=9,
    shed_at=8,
)
VALUES = {
    "ticket": TICKET,
    "ticket_id": "ticket-1",
    "pool": POOL,
    "reason": "because",
    "text": "paused by a person",
    "outcome": Outcome(OutcomeKind.SUCCESS, "200"),
    "usage": None,
    "end": "delivered",
    "until": 3.5,
    "budget": Budget(Scope.GROUP, "reviewers", Period.DAY, micro_usd=5_000_000),
    "unit": "micro_usd",
    "spent": 4_300_000,
    "limit": 5_000_000,
}


def make(kind, **changes):
    values = {field.name: (VALUES | changes).get(field.name, 1) for field in structs.fields(kind)}
    if kind is events.Held:
        values["reason"] = Reason.METER
    if kind is events.BudgetBooked:
        values["spent"] = values["reserved"] = values["added"] = Spend(1, 2)
    if kind is events.AttemptEnded:
        values["spend"] = Spend(1, 2)
    if kind is events.CheckpointKept:
        values["checkpoint_id"] = "ticket-1"
    return kind(**values)


@pytest.mark.parametrize("kind", get_args(events.Event), ids=lambda kind: kind.__name__)
def test_every_event_is_one_line(kind):
    _, line = describe(make(kind))
    assert line
    assert "\n" not in line


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in get_args(events.Event)
        if "ticket_id" in {field.name for field in structs.fields(kind)} - {"pool"}
    ],
    ids=lambda kind: kind.__name__,
)
def test_what_is_about_a_ticket_names_it(kind):
    if kind is not events.GuardTripped:  # the guard's own line, with the traceback, does
        assert "ticket-1" in describe(make(kind))[1]


@pytest.mark.parametrize(
    ("end", "level"),
    [
        ("delivered", logging.DEBUG),
        ("cancelled", logging.DEBUG),
        ("gave up", logging.WARNING),
        ("shed", logging.INFO),
        ("refused", logging.DEBUG),
    ],
)
def test_ends_that_a_person_should_see_are_warnings(end, level):
    assert describe(make(events.TicketEnded, end=end))[0] == level


@pytest.mark.parametrize(("until", "says"), [(None, "again in 2.5 s"), (1, "again when it is its turn")])
def test_a_backoff_says_how_long(until, says):
    changes = {} if until is None else {"at": until, "until": until}
    assert describe(make(events.BackedOff, **changes))[1].endswith(says)


@pytest.mark.parametrize(("wait_s", "says"), [(12.34, "wait 12.3 s "), (86_400, "wait 1 d 0 h ")])
def test_a_wait_is_told_in_units_that_people_read(wait_s, says):
    assert says in describe(make(events.PoolBlocked, at=0.0, until=wait_s))[1]


@pytest.mark.parametrize(
    ("kind", "how_much"),
    [(events.BudgetWarned, "most of its budget"), (events.BudgetSpent, "its budget")],
)
def test_a_person_reads_who_has_spent_how_much_of_what(kind, how_much):
    assert describe(make(kind)) == (
        logging.WARNING,
        f"group reviewers has spent {how_much}: $4.30 of $5.00 per day",
    )


def told(*made, least=logging.INFO):
    news = News()
    return [line.text for event in made for line in news.lines(event, least)]


def test_a_long_outage_is_two_lines():
    def breaker(before, state, at):
        return make(events.BreakerChanged, at=at, before=before, state=state)

    probes = [
        event
        for at in range(10, 3600, 15)
        for event in (breaker("open", "half-open", at), breaker("half-open", "open", at + 1))
    ]
    end = [breaker("open", "half-open", 3600), breaker("half-open", "closed", 3601)]
    lines = told(breaker("closed", "open", 0), *probes, *end)
    assert [line.split(": ")[1].split(" (")[0] for line in lines] == [
        "breaker open",
        "breaker closed, the provider answers again",
    ]


def test_of_a_crowd_the_first_are_told_and_the_others_counted():
    crowd = [make(events.TicketEnded, at=0.0, ticket_id=f"ticket-{number}", end="shed") for number in range(100)]
    lines = told(*crowd, make(events.Submitted, at=300.0))
    assert len(lines) == 6
    assert lines[-1] == "host.test/key-1/model: 95 more requests shed within 5 min"


def test_a_request_that_failed_once_or_twice_is_nobodys_news():
    lines = told(*(make(events.BackedOff, at=60.0 * attempt, attempt=attempt) for attempt in range(1, 24)))
    assert [line.split(" failed")[0] for line in lines] == [f"ticket-1 attempt {attempt}" for attempt in (3, 6, 12)]


def test_a_limit_is_told_when_it_is_first_seen_and_when_it_has_moved():
    seen = [("unknown", 50.0), ("bucket", 50.0), ("window", 52.0), ("window", 100.0)]
    lines = told(*(events.MeterLearned(1.0, POOL, "requests", kind, limit) for kind, limit in seen))
    assert [line.split("learned: ")[1] for line in lines] == ["requests 50", "requests 100 (window)"]


def test_what_gave_up_says_what_the_provider_said():
    event = make(events.TicketEnded, end="gave up", attempts=1, waited_s=0.0, last_outcome="401 authentication_error")
    assert describe(event)[1] == ("ticket-1 gave up (because: 401 authentication_error) after 1 attempt, 0.0 s waited")


def test_whoever_asks_for_everything_is_told_everything_but_known_oddities():
    requests = [make(kind, at=0.0) for kind in (events.Submitted, events.TicketEnded) for _ in range(20)]
    oddities = [events.OddityNoted(0.0, POOL, None, "a header without a number")] * 20
    assert len(told(*requests, *oddities, least=logging.DEBUG)) == 41


def test_a_line_says_what_it_is_about():
    news = News()
    (gone,) = news.lines(make(events.TicketEnded, at=0.0, end="gave up"))
    assert (gone.level, gone.ticket_id, gone.pool) == (logging.WARNING, "ticket-1", POOL)
    assert list(news.lines(make(events.TicketEnded, at=0.0))) == []


@pytest.mark.parametrize(
    ("kind", "values", "level", "line"),
    [
        (
            events.WallHit,
            {"at": 0.0, "until": 7384.0, "reason": "429 rate_limit_error"},
            logging.WARNING,
            "the account is refused for 2 h 4 min (429 rate_limit_error); everybody is told, nothing is sent until then or a restart",
        ),
        (events.WallHit, {"at": 0.0, "until": 200_000.0}, logging.WARNING, "the account is refused for 2 d 7 h"),
        (events.WallOpened, {}, logging.WARNING, "the account is served again"),
        (
            events.WindowUsed,
            {"window": "5h", "used": 0.416, "status": "allowed", "resets_in_s": 600.0},
            logging.INFO,
            "window 5h 42% used (allowed), anew in 10 min",
        ),
        (
            events.WindowUsed,
            {"window": "7d", "used": None, "status": "allowed_warning", "resets_in_s": None},
            logging.WARNING,
            "window 7d (allowed_warning)",
        ),
    ],
)
def test_a_person_reads_how_much_is_used_and_until_when_it_is_spent(kind, values, level, line):
    told_level, told = describe(make(kind, **values))
    assert told_level == level
    assert told.startswith(f"host.test/key-1/model: {line}")
