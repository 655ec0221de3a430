import pytest
from msgspec import structs

from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.proxy.journal import runs
from hivemind_addon.proxy.journal.file import JournalFile
from hivemind_addon.proxy.journal.rows import Rows
from tests.proxy.journal.samples import booked, life, started, submitted

AHEAD_S = 1.7e9
WALL = AHEAD_S + 5000


@pytest.fixture
def file(tmp_path):
    file = JournalFile(tmp_path / "journal.db", wall=WALL, told=print)
    yield file
    file.close()


def run(file, *events, wall=WALL, port=0, fresh=False):
    """A run that begins, and writes these."""
    inherited = runs.inherit(file.connection, wall, port=port, fresh=fresh)
    number = runs.begin(file.connection, pid=1, version="9", wall=wall, goes_on=inherited.run_goes_on, port=port)
    rows = Rows(port)
    rows.begin(number, inherited.budgets)
    for event in events:
        rows.take(event, event.at + AHEAD_S)
    file.write([*rows.batches(), runs.keep("learned", '{"a":1}', wall), runs.seen(number, wall + 1)])
    return number


def end(file, number, wall):
    file.write(runs.end(number, wall, "its proxy ended"))


def of(file, sql):
    return file.connection.execute(sql).fetchall()


def test_a_new_journal_has_nothing_to_inherit(file):
    inherited = runs.inherit(file.connection, WALL)
    assert (dict(inherited.kept), inherited.standings(WALL)) == ({}, [])


def test_what_had_not_ended_as_its_proxy_died_is_lost(file):
    first = run(file, *life("over"), submitted("open"), started("open"), submitted("queued"))
    second = run(file, wall=WALL + 60)
    assert of(file, 'SELECT id, run, "end", reason FROM ticket ORDER BY id') == [
        ("open", first, "lost", "its proxy died"),
        ("over", first, "delivered", "done"),
        ("queued", first, "lost", "its proxy died"),
    ]
    assert of(file, "SELECT ticket, outcome, ambiguous FROM attempt ORDER BY ticket") == [
        ("open", "lost", 1),
        ("over", "success", 0),
    ]
    assert of(file, "SELECT ended FROM ticket WHERE id = 'open'") == [(WALL + 1,)], "as it was seen last"
    assert of(file, "SELECT id, ended FROM run") == [(first, None), (second, None)]


def test_a_run_that_ends_says_when(file):
    number = run(file, submitted("open"))
    end(file, number, WALL + 9)
    assert of(file, "SELECT ended, seen FROM run") == [(WALL + 9, WALL + 9)]
    assert of(file, 'SELECT "end" FROM ticket') == [("lost",)]
    assert runs.has(file.connection, number, WALL)
    assert not runs.has(file.connection, number, WALL + 1)


def test_what_was_in_flight_counts_as_spent(file):
    run(file, booked(spent=70, reserved=30, began_at=4000, added=5))
    (standing,) = runs.inherit(file.connection, WALL + 100).standings(WALL + 100)
    assert standing.budget == Budget(Scope.AGENT, "agent-1", Period.DAY, tokens=500)
    assert (standing.spent, standing.added) == (Spend(100, 0), Spend(5, 0))
    assert standing.age_s == pytest.approx(1100)
    # And it is counted in once, also by those who only read.
    run(file, wall=WALL + 100)
    assert of(file, "SELECT spent_tokens, reserved_tokens FROM budget") == [(100, 0)]


def test_what_had_no_price_in_flight_counts_as_spent_without_one(file):
    event = booked(began_at=4000)
    spent, reserved = Spend(70, unpriced_tokens=50), Spend(30, unpriced_tokens=30)
    run(file, structs.replace(event, spent=spent, reserved=reserved))
    (standing,) = runs.inherit(file.connection, WALL + 100).standings(WALL + 100)
    assert standing.spent == Spend(100, unpriced_tokens=80)
    run(file, wall=WALL + 100)
    assert of(file, "SELECT spent_unpriced_tokens, reserved_unpriced_tokens FROM budget") == [(80, 0)]


def test_a_clock_that_was_set_back_makes_no_period_longer(file):
    run(file, booked(began_at=4000))
    (standing,) = runs.inherit(file.connection, AHEAD_S).standings(AHEAD_S)
    assert standing.age_s == 0


@pytest.mark.parametrize(
    ("ends_after_s", "begins_after_s", "goes_on"),
    [
        (None, 1, True),
        (None, 999_999, True),
        (10, 20, True),
        (10, 10 + 3599, True),
        (10, 10 + 3601, False),
        (9, 0, True),
    ],
    ids=["killed", "killed long ago", "restarted", "just within the hour", "the day after", "clock set back"],
)
def test_a_budget_per_run_outlives_a_crash_and_a_restart(file, ends_after_s, begins_after_s, goes_on):
    first = run(file, booked(per=Period.RUN), booked(per=Period.MONTH))
    if ends_after_s is not None:
        end(file, first, WALL + ends_after_s)
    wall = WALL + begins_after_s
    kept = {one.budget.per for one in runs.inherit(file.connection, wall).standings(wall)}
    assert kept == ({Period.RUN, Period.MONTH} if goes_on else {Period.MONTH})
    run(file, wall=wall)
    assert {per for (per,) in of(file, "SELECT per FROM budget")} == {one.value for one in kept}


def test_an_account_that_cannot_be_understood_is_left_out(file):
    run(file, booked())
    file.write([("UPDATE budget SET per = 'year'", ())])
    assert runs.inherit(file.connection, WALL).standings(WALL) == []


def test_what_is_kept_is_the_last_word(file):
    run(file)
    file.write([runs.keep("learned", "{}", WALL)])
    assert dict(runs.inherit(file.connection, WALL).kept) == {"learned": "{}"}


def kept(file, name, value, wall=WALL):
    file.write([runs.keep(name, value, wall)])


def test_orders_belong_to_the_port_that_they_were_given_on(file):
    kept(file, runs.of_port("orders", 8080), "eighty")
    kept(file, runs.of_port("learned", 8080), "all")
    assert runs.inherit(file.connection, WALL, port=8080).kept == {"orders": "eighty", "learned": "all"}
    assert runs.inherit(file.connection, WALL, port=9090).kept == {"learned": "all"}
    assert runs.inherit(file.connection, WALL, port=8080, fresh=True).kept == {"learned": "all"}
    file.write(runs.forget_orders(8080))
    assert runs.inherit(file.connection, WALL, port=8080).kept == {"learned": "all"}


def test_orders_from_before_they_belonged_to_a_port_are_taken_over_once(file):
    kept(file, "orders", "old")
    assert runs.inherit(file.connection, WALL, port=8080).kept == {"orders": "old"}
    kept(file, runs.of_port("orders", 8080), "new")
    assert runs.inherit(file.connection, WALL, port=8080).kept == {"orders": "new"}
    assert runs.inherit(file.connection, WALL, port=9090).kept == {}


def test_budgets_per_run_go_on_on_their_own_port_unless_they_are_to_begin_anew(file):
    run(file, booked(per=Period.RUN, spent=80, reserved=0), booked(spent=1, reserved=0), port=8080)
    run(file, booked(per=Period.RUN, spent=90, reserved=0), wall=WALL + 1, port=9090)

    def spent(port, **how):
        standings = runs.inherit(file.connection, WALL + 2, port=port, **how).standings(WALL + 2)
        return {one.budget.per: one.spent.tokens for one in standings}

    assert spent(8080) == {Period.RUN: 80, Period.DAY: 1}, "another port's run in between has not ended its own"
    assert spent(9090) == {Period.RUN: 90, Period.DAY: 1}
    assert spent(7070) == spent(8080, fresh=True) == {Period.DAY: 1}
    end(file, run(file, wall=WALL + 2, port=8080, fresh=True), WALL + 3)
    assert spent(8080) == {Period.DAY: 1}
    assert spent(9090) == {Period.RUN: 90, Period.DAY: 1}
