"""What each question of `hivemind history` answers; what people and programs get is in golden/."""

import csv
import json
import sqlite3
from contextlib import closing
from itertools import product
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from hivemind_addon.formats.wire.proxy_user import given_id
from hivemind_addon.proxy.api.command import CommandReply, MemberAnswer
from hivemind_addon.proxy.journal.file import JournalFile
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.database import FileUnusable
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import history as commands
from hivemind_addon.tools.history import everywhere
from hivemind_addon.tools.history.filters import RequestFilter
from hivemind_addon.tools.history.reader import JournalReader
from tests.proxy.journal.book import NOON, POOL, journal_with
from tests.tools.commands.served import serving
from tests.tools.commands.slips import offenders
from tests.tools.dash.samples import report

"""What the version of 2026-11-22 wrote, as SQL."""
COMMANDS = ["", "agents", "retries", "incidents", "incident", "budgets", "limits", "runs"]


def fill(book):
    book.run(seen=NOON + 500, ended=NOON + 500)
    book.run(2, began=NOON + 600, seen=NOON + 7200)
    book.ticket("3f9c01ab2e", task="nightly-1", idempotency_key="key-1", waited_s=11.0, attempts=2)
    book.attempt(
        "3f9c01ab2e", 1, NOON + 1, "overloaded", took_s=1, retry_at=NOON + 12, retry_reason="529 overloaded_error"
    )
    book.attempt("3f9c01ab2e", 2, NOON + 12)
    book.ticket("3f9c77ab2e", task="nightly-1", idempotency_key="key-1", arrived=NOON + 20, attempts=1)
    book.attempt("3f9c77ab2e", 1, NOON + 21)
    book.ticket("b000000000", agent="bob", arrived=NOON + 30, end="refused", reason="budget spent")
    book.breaker("open", NOON + 2)
    book.breaker("closed", NOON + 12, "200", before="half-open")
    book.add(
        "budget",
        scope="agent",
        name="bob",
        per="day",
        run=1,
        limit_tokens=None,
        limit_micro_usd=5_000_000,
        began=NOON,
        spent_tokens=700,
        spent_micro_usd=5_100_000,
        reserved_tokens=0,
        reserved_micro_usd=0,
        added_tokens=0,
        added_micro_usd=0,
    )
    book.happening("BudgetSpent", NOON + 29, "agent bob has spent its budget", pool="")
    book.add("limit", run=1, at=NOON, pool=POOL, meter="requests", kind="bucket", limit=50, window_s=60, dimension="x")


@pytest.fixture(name="journal")
def journal_fixture(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(SystemClock, "wall", lambda _: NOON + 3600)
    folder = tmp_path / "hivemind_addon"
    folder.mkdir()
    return journal_with(folder / "journal.db", fill)


def run(*arguments, width=80):
    return CliRunner().invoke(main, ["history", *map(str, arguments)], env={"COLUMNS": str(width)})


def said(*arguments, width=80) -> str:
    result = run(*arguments, width=width)
    assert result.exit_code == 0, result.output
    return result.output


def changed(journal, statement, *values):
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute(statement, values)


def test_a_journal_of_a_version_that_was_never_released_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "old.db"
    JournalFile(path, wall=NOON, told=pytest.fail).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 3")
    asked = ("--journal", path, "--since", "2026-01-01")
    assert "journal version 3" in run(*asked).stderr
    with pytest.raises(FileUnusable, match="version 3, which was never released; "):
        JournalFile(path, wall=NOON + 3600, told=pytest.fail)


def test_the_journals_of_a_cluster_are_asked_together(folders, journal):
    def members(command):
        with JournalReader(journal) as book:
            mine = everywhere.answer(book, command.question)
        there = [("ci-1", mine, ""), ("laptop-2", mine, ""), ("old-3", "", "it keeps no journal")]
        told = [msgspec.to_builtins(MemberAnswer(*one)) for one in there]
        return CommandReply(done=True, text="3 of 4 members answered", value=told)

    with serving(report(), answer=members):
        rows = run("--all", "--json", "-n", 3)
        assert [(row["id"], row["proxy"]) for row in json.loads(rows.stdout)] == [
            ("b000000000", "ci-1"),
            ("b000000000", "laptop-2"),
            ("3f9c77ab2e", "ci-1"),
        ]
        assert rows.stderr == "3 of 4 members answered.\nold-3: it keeps no journal\n"
        mine = json.loads(run("agents", "--json", "--since", "2020-01-01").stdout)
        both = json.loads(run("agents", "--all", "--json", "--since", "2020-01-01").stdout)
        assert [(one["name"], one["requests"]) for one in both] == [(one["name"], 2 * one["requests"]) for one in mine]
        assert json.loads(run("--all", "--json", "--agent", "nobody").stdout) == []
    refused = run("--all")
    assert refused.exit_code == 1
    assert "no proxy is there" in refused.output
    assert run("--all", "--journal", journal).exit_code == 2


def test_a_question_from_elsewhere_is_answered_and_nonsense_is_one_line(journal):
    asked = everywhere.make_question(RequestFilter(agent="bob"), most=5)
    told = CliRunner().invoke(main, ["history", "answer", "--journal", str(journal)], input=asked)
    assert [row["agent"] for row in json.loads(told.stdout)] == ["bob"]
    told = CliRunner().invoke(main, ["history", "answer", "--journal", str(journal)], input='{"drop": 1}')
    assert told.exit_code == 1
    assert told.output.startswith("Error: this version does not understand the question")


QUESTIONS = [*COMMANDS, "ticket 3f9c01ab2e", "ticket key-1", "ticket nightly-1"]


def name_of(question):
    return "-".join(("history", *question.split()))


@pytest.mark.usefixtures("journal")
def test_people_get_words(golden):
    for question in QUESTIONS:
        golden(f"{name_of(question)}.txt", said(*question.split(), width=100))


@pytest.mark.usefixtures("journal")
def test_programs_get_everything(golden):
    for question in QUESTIONS:
        golden(f"{name_of(question)}.json", said(*question.split(), "--json"))
        header, *rows = csv.reader(said(*question.split(), "--csv").splitlines())
        assert rows, question
        assert all(len(row) == len(header) for row in rows)


@pytest.mark.usefixtures("journal")
class TestAsked:
    """What each question answers, from the default journal."""

    def test_every_table_fits_the_terminal(self):
        for command, width in product(COMMANDS, (80, 160)):
            lines = said(*command.split(), width=width).splitlines()
            assert max(map(len, lines)) <= width, (command, width)

    def test_of_more_requests_it_says_so(self):
        assert said("-n", 2).splitlines()[-1] == "There are older ones: -n 10"

    def test_filters(self):
        assert "b000000000" in said("--agent", "b*", "--end", "refused", "--since", "2h")
        assert said("--agent", "nobody") == "no such request is known\n"
        assert said("--until", "2h") == "no such request is known\n"
        assert "nothing was asked for since" in said("agents", "nobody")
        assert "no request was tried again since" in said("retries", "--agent", "bob")
        assert said("incidents", "--pool", "api.openai.com") == "no incident is known\n"
        assert said("incident", "--pool", "api.openai.com") == "no incident is known\n"
        assert len(json.loads(said("incidents", "--pool", "api.anthropic.com", "--json"))) == 1

    def test_a_request_is_known_by_the_beginning_of_its_id(self):
        assert said("ticket", "3f9c0") == said("ticket", "3f9c01ab2e")

    def test_many_requests_of_a_task_are_listed(self, journal):
        journal.unlink()
        journal_with(journal, lambda book: (book.run(), *(book.ticket(f"a{n}", task="t") for n in range(9))))
        text = said("ticket", "t")
        assert text.startswith("task t: 9 requests: 9 never ran\n")
        assert text.splitlines()[-1].startswith("Each one's story: hivemind history ticket a")

    def test_costs_by_the_day(self):
        assert json.loads(said("agents", "--by", "day", "--json"))[0]["requests"] == 3

    def test_it_says_of_which_time_it_speaks(self):
        assert said("agents", "--since", "2h", "--until", "now").startswith("since ")
        assert " until " in said("agents", "--since", "2h", "--until", "now").splitlines()[0]

    def test_an_incident_that_went_on_after_the_span_has_its_end(self):
        [one] = json.loads(said("incidents", "--until", "2026-01-01T12:00:05Z", "--json"))
        assert one["ending"] == "the provider answered again"
        assert said("incidents", "--until", "2026-01-01T12:00:02Z") == "no incident is known\n"

    def test_budgets_that_were_added_to_say_so(self, journal):
        changed(journal, "UPDATE budget SET added_micro_usd = 2000000")
        text = said("budgets", width=160)
        assert text.splitlines()[0].split() == ["Whose", "Per", "Spent", "Of", "Added", "Since"]
        assert "$2.00" in text

    def test_a_run_of_which_nobody_holds_the_lock_has_died(self, journal):
        journal.with_name("journal.db.lock").touch()
        assert [one["fate"] for one in json.loads(said("runs", "--json"))] == ["stopped", "died"]

    def test_options_may_stand_before_the_question(self, tmp_path):
        other = journal_with(tmp_path / "other.db", lambda book: (book.run(), book.ticket("c000000000", agent="carl")))
        for arguments in (("--journal", other, "agents"), ("agents", "--journal", other)):
            assert "carl" in said(*arguments)
        assert "carl" in said("--journal", other)
        assert said("--json", "--agent", "ann", "retries") == said("retries", "--agent", "ann", "--json")
        assert said("--agent", "agents") == "no such request is known\n", "that is a name"

    def test_what_is_asked_wrongly_is_said_in_a_line(self):
        slips = [
            (("ticket", "3f9c"), 1, "no request, task or Idempotency-Key is '3f9c'; there are 3f9c01ab2e, 3f9c77ab2e"),
            (("ticket", "zzz"), 1, "is or begins with 'zzz'"),
            (("ticket", ""), 1, "is or begins with ''"),
            (("ticket", "\udcff"), 1, "begins with '?'"),
            (("incident", "9"), 1, "no incident 9 is known: there is 1"),
            (("incident", "zero"), 2, "'zero' is no number and not `last`"),
            (("incident", "0"), 2, "'0' is no number"),
            (("agents", "--since", "soon"), 2, "'soon' is no instant"),
            (("--since", "1h", "--until", "2h"), 2, "--since is not before --until"),
            (("agnets",), 2, "No such command 'agnets'"),
            (("--end", "well"), 2, "'well' is not one of"),
        ]
        assert offenders(run, slips) == []


@pytest.mark.parametrize(
    ("arguments", "environment", "port"),
    [
        ((), {}, 8080),
        ((), {"HIVEMIND_PORT": "9090"}, 9090),
        (("-p", "7070"), {}, 7070),
        (("retries",), {"HIVEMIND_PORT": "9090"}, 9090),
        (("retries", "-p", "7070"), {"HIVEMIND_PORT": "9090"}, 7070),
        (("-p", "7070", "retries"), {}, 7070),
        (("-p", "7070", "retries", "-p", "6060"), {}, 6060),
    ],
)
def test_the_journal_is_that_of_the_proxy_on_a_port(journal, monkeypatch, arguments, environment, port):
    asked = []
    monkeypatch.delenv("HIVEMIND_PORT", raising=False)
    monkeypatch.setattr(commands, "journal_of", lambda port: asked.append(port) or journal)
    result = CliRunner().invoke(main, ["history", *arguments], env=environment)
    assert result.exit_code == 0, result.output
    assert asked == [port]


def test_without_a_journal_each_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for command in (*COMMANDS, "ticket x"):
        result = run(*command.split())
        assert (result.exit_code, result.output.count("\n")) == (1, 1), command
        assert "hivemind run" in result.output


def test_of_an_empty_journal_each_says_that_nothing_is_there(tmp_path):
    path = journal_with(tmp_path / "journal.db", lambda _book: None)
    for command in COMMANDS:
        assert len(said(*command.split(), "--journal", path).splitlines()) == 1, command
        json.loads(said(*command.split(), "--journal", path, "--json")) if command != "incident" else None


def test_a_damaged_journal_is_one_line(tmp_path):
    path = journal_with(tmp_path / "journal.db", fill)
    path.write_bytes(path.read_bytes()[:8192])
    result = run("--journal", path)
    assert result.exit_code == 1
    assert "is damaged" in result.output
    assert result.output.count("\n") == 1


def test_a_long_id_is_found_as_its_client_gave_it(tmp_path):
    key = "order-" + "7" * 200
    path = journal_with(tmp_path / "j.db", lambda book: book.ticket("3f9c01ab2e", idempotency_key=given_id(key)))
    assert "3f9c01ab2e" in said("ticket", key, "--journal", path)


_ODD = (
    0,
    -1,
    2**62,
    -(2**62),
    1e308,
    float("inf"),
    float("-inf"),
    "",
    "x",
    "\x1b[2J\na",
    "[/bold]",
    b"\xff",
    1e18,
    None,
)
_COLUMNS = {
    "ticket": ("arrived", "admitted", "ended", "end", "reason", "attempts", "waited_s", "pool", "model", "run", "kind"),
    "attempt": ("began", "ended", "outcome", "reason", "status", "tokens", "micro_usd", "retry_at", "retry_reason"),
    "wait": ("began", "reason", "position"),
    "happening": ("at", "event", "text", "fields", "pool"),
    "run": ("began", "seen", "ended", "pid"),
}


@pytest.mark.parametrize("table", _COLUMNS)
def test_whatever_the_journal_holds_no_question_ends_in_a_traceback(journal, table):
    """SQLite takes any value in any column; a disk, an editor or another version may have written it."""
    whole = journal.read_bytes()
    for column, odd in product(_COLUMNS[table], _ODD):
        journal.write_bytes(whole)
        changed(journal, f'UPDATE OR IGNORE "{table}" SET "{column}" = ?', odd)
        for question in (["ticket", "3f9c01ab2e"], ["retries", "--since", "1990-01-01"], ["incident"]):
            for form in ((), ("--json",)):
                result = run(*question, *form)
                assert result.exception is None or isinstance(result.exception, SystemExit), (
                    column,
                    odd,
                    question,
                    form,
                )


def test_what_cannot_be_told_is_one_line(journal):
    changed(journal, "UPDATE attempt SET tokens = 'many'")
    result = run("ticket", "3f9c01ab2e")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert str(journal) in result.output
