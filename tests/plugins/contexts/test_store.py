import errno
import json
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing

import pytest
from msgspec import Raw
from msgspec.structs import replace

from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.plugins.contexts import bodies
from hivemind_addon.plugins.contexts import store as module
from hivemind_addon.plugins.contexts.schema import COMPLETE, DELTA
from hivemind_addon.plugins.contexts.store import ContextStore, KeepRule, TakenResult, UnknownContext
from hivemind_addon.proxy.system.database import FileUnusable
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from tests.cases import each
from tests.patience import PATIENCE_S
from tests.plugins.contexts.samples import WALL, context, conversation, sent

ANSWER = json.dumps({"content": [{"type": "text", "text": "I am done."}]}).encode()


@pytest.fixture
def store(tmp_path):
    return ContextStore(tmp_path / "state" / "contexts")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def sessions(store):
    return [head.session for head in store.heads()]


def told(store, sql):
    with closing(sqlite3.connect(store.path)) as connection:
        return connection.execute(sql).fetchone()[0]


def emptied(store):
    """All that can be deleted is."""
    steps = 0
    while store.trim(WALL):
        steps += 1
    return steps


def texts_of(context):
    return [message["content"] for message in json.loads(bytes(context.body))["messages"]]


def grown(store, turns, session="s-1", wall=WALL):
    texts = [f"text {number} of {session}" for number in range(2 * turns)]
    return [store.keep(conversation(*texts[: 2 * at + 1], session=session, wall=wall + at)) for at in range(turns)]


# What is kept --------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_read_back_by_another_process_and_by_nobody_else(store):
    kept = context(request_hash="h1", answer=ANSWER)
    head = store.keep(kept)
    assert (head.version, head.ticket_id, head.tokens, head.answer_bytes) == (1, "c0ffee0001", 7, len(ANSWER))
    reader = ContextStore(store.folder)
    assert reader.heads() == reader.versions(head.id) == [head]
    read = reader.read(head.id)
    assert (read.head, read.method, read.url, read.headers) == (head, kept.method, kept.url, kept.headers)
    assert (bytes(read.body), read.answer) == (sent().body, ANSWER)
    assert mode(store.folder) == 0o700
    assert {mode(path) for path in store.folder.iterdir()} == {0o600}


def test_a_conversation_that_grows_has_a_version_for_each_request_which_takes_the_room_of_its_news(store):
    heads = grown(store, 60)
    assert len({head.id for head in heads}) == 1
    assert [head.version for head in heads] == list(range(1, 61))
    assert told(store, f"SELECT group_concat(number) FROM body WHERE kind = {COMPLETE}") == "1,26,51"
    assert told(store, f"SELECT max(length(data)) FROM body WHERE kind = {DELTA}") < 200
    for at, head in enumerate(heads):
        assert texts_of(store.read(head.id, head.version)) == [f"text {n} of s-1" for n in range(2 * at + 1)]
    assert store.heads() == heads[-1:]


@each(("body", "times"), [(b"", 1), (b"{}", 1), (os.urandom(500), 6_000), (b"x", 3_000_000)])
def test_a_body_comes_back_byte_by_byte(store, body, times):
    body *= times
    store.remove(store.keep(context()).id)
    connection = store._opened()
    for number, text in enumerate([body, body + b"more", body], start=2):
        bodies.write(connection, 1, number, text, bodies.read(connection, 1, number - 1))
        assert bodies.read(connection, 1, number) == text
    assert told(store, "SELECT sum(length(data)) FROM body WHERE number > 2") < 5_000


def test_a_conversation_that_is_rewound_and_compacted_keeps_what_it_was(store):
    told_texts = [("a", "b", "c", "d"), ("a", "b"), ("a", "x", "c", "d", "e"), ("a", "b", "c")]
    for texts in told_texts:
        head = store.keep(conversation(*texts))
    for number, texts in enumerate(told_texts, start=1):
        body = json.loads(bytes(store.read(head.id, number).body))
        assert tuple(message["content"] for message in body["messages"]) == texts


def test_conversations_are_told_apart_by_agent_session_and_first_words(store):
    kept = [
        store.keep(one).id
        for one in (
            conversation("a"),
            conversation("b"),
            conversation("a", session="s-2"),
            conversation("a", agent="agent-2"),
        )
    ]
    assert len(set(kept)) == 4
    assert store.keep(conversation("a", "more")).id == kept[0]


def test_the_same_request_sent_again_makes_no_version_and_gets_its_answer(store):
    first = store.keep(conversation("a", request_hash="h1", reason="turn"))
    assert ContextStore(store.folder).keep(conversation("a", request_hash="h1", wall=WALL + 5, reason="turn")) == first
    refused = store.keep(conversation("a", request_hash="h1", reason="the budget is spent"))
    assert (refused.version, refused.reason, refused.answer_bytes) == (1, "the budget is spent", 0)
    answered = store.keep(conversation("a", request_hash="h1", reason="the budget is spent", answer=ANSWER))
    assert (answered.version, store.read(first.id).answer) == (1, ANSWER)
    assert store.keep(conversation("a", "b", request_hash="h2")).version == 2


def test_the_same_request_is_known_without_a_hash_as_well(store):
    for texts in (("a",), ("a",), ("a", "b"), ("a", "b"), ("a",)):
        head = store.keep(conversation(*texts))
    assert head.version == 3


def test_a_request_that_was_slower_than_a_later_one_does_not_become_the_newest(store):
    later = store.keep(conversation("a", "b", "c", arrived=2.0, spent=Spend(1, 1)))
    assert store.keep(conversation("a", arrived=1.0, spent=Spend(2, 2), answer=ANSWER)).version == 1
    (head,) = store.versions(later.id)
    assert (head.messages, head.answer_bytes, head.spent) == (3, 0, Spend(3, 3))


def test_an_answer_goes_once_it_is_among_the_messages(store):
    head = store.keep(conversation("a", answer=ANSWER))
    store.keep(conversation("b", "other", answer=ANSWER))
    store.keep(conversation("a", "said", "c", answer=b"2"))
    assert [one.answer_bytes for one in store.versions(head.id)] == [0, 1]
    store.keep(conversation("a"))  # rewound: nothing else has the answer
    assert store.read(head.id, 2).answer == b"2"


def steps_of_keeping(store, turns, session):
    """Tens of instructions of SQLite's own machine."""
    steps = []
    connection = store._opened()
    connection.set_progress_handler(lambda: steps.append(1), 10)
    try:
        store.keep(conversation(*(f"text {number} of {session}" for number in range(2 * turns + 1)), session=session))
    finally:
        connection.set_progress_handler(None, 0)
    return len(steps)


def test_to_keep_one_takes_no_longer_beside_many_others(store):
    grown(store, 2, session="s-first")
    few, _, many = (sum(steps_of_keeping(store, 100, f"s-{at + 10 * some}") for at in range(10)) for some in range(3))
    assert many < 1.3 * few


def test_what_was_spent_is_summed_from_version_to_version(store):
    for texts in (("a",), ("a", "b")):
        head = store.keep(conversation(*texts, spent=Spend(10, 3)))
    assert head.spent == Spend(20, 6)


def test_an_answer_is_found_by_its_name(store):
    head = store.keep(replace(conversation("a", answer=ANSWER), answer_id="resp_1"))
    store.keep(conversation("a", "said", "c"))
    assert store.answered_as("resp_1").head == head
    assert store.answered_as("resp_2") is None
    assert store.answered_as("") is None


def test_several_are_kept_at_once_or_none_is(store, monkeypatch):
    some = [conversation("a"), conversation("a", "said", "b"), conversation("a", session="s-2"), conversation("c")]
    heads = store.keep_all(some)
    assert [(head.session, head.version) for head in heads] == [("s-1", 1), ("s-1", 2), ("s-2", 1), ("s-1", 1)]
    assert texts_of(store.read(heads[1].id)) == ["a", "said", "b"]
    assert store.keep_all([]) == []
    monkeypatch.setattr(module, "thin", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.keep_all([conversation("d", session="s-3"), conversation("e", session="s-4")])
    assert "s-3" not in sessions(store)


# What goes again -----------------------------------------------------------------------------------------------------


def test_of_many_versions_the_first_and_the_newest_stay(tmp_path):
    store = ContextStore(tmp_path / "kept", retention=KeepRule(versions=3))
    heads = grown(store, 6)
    assert [head.version for head in store.versions(heads[0].id)] == [1, 5, 6]
    assert json.loads(bytes(store.read(heads[0].id, 1).body))["messages"][0]["content"] == "text 0 of s-1"


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (KeepRule(size_bytes=1), ["5"]),
        (KeepRule(age_s=2.5), ["5", "4", "3"]),
        (KeepRule(), ["5", "4", "3", "2", "1", "0"]),
    ],
)
def test_the_oldest_are_forgotten_by_size_and_age(tmp_path, retention, left):
    store = ContextStore(tmp_path / "kept", retention=retention)
    for number in range(6):
        store.keep(conversation(f"question {number}", session=str(number), wall=WALL + number))
    while store.trim(WALL + 5):
        pass
    assert sessions(store) == left


def test_one_context_that_is_too_large_alone_keeps_its_newest_version(tmp_path):
    store = ContextStore(tmp_path / "kept", retention=KeepRule(size_bytes=1))
    head = grown(store, 4)[-1]
    assert emptied(store)
    assert store.versions(head.id) == [head]
    assert bytes(store.read(head.id).body)


def test_a_version_that_others_are_built_on_goes_with_the_last_of_them(tmp_path):
    store = ContextStore(tmp_path / "kept", retention=KeepRule(versions=10))
    head = grown(store, 60)[-1]
    assert [one.version for one in store.versions(head.id)] == [1, *range(52, 61)]
    assert told(store, "SELECT group_concat(number) FROM body WHERE number < 54") == "1,51,52,53"
    assert texts_of(store.read(head.id, 52)) == [f"text {n} of s-1" for n in range(103)]


def test_what_is_removed_is_gone_at_once(store):
    gone, stays = grown(store, 8, session="s-1")[-1], grown(store, 2, session="s-2")[-1]
    assert store.remove(gone.id[:6]).id == gone.id
    assert store.heads() == [stays]
    with pytest.raises(UnknownContext, match="no context"):
        store.read(gone.id)
    again = store.keep(conversation("text 0 of s-1"))
    assert (again.id, again.version) == (gone.id, 1)
    assert [told(store, f"SELECT count(*) FROM {table}") for table in ("version", "body")] == [3, 3]
    emptied(store)
    assert {bytes(store.read(head.id).body) for head in store.heads()}


def test_a_clock_that_was_set_back_costs_nothing_that_is_new(tmp_path):
    store = ContextStore(tmp_path / "kept", retention=KeepRule(size_bytes=1))
    for number in range(3):
        store.keep(conversation(f"question {number}", session=str(number), wall=WALL - 1e6 * number))
        emptied(store)
    assert sessions(store) == ["2"]


# Reading -------------------------------------------------------------------------------------------------------------


def test_a_beginning_is_enough_where_it_names_one(store):
    ids = [store.keep(conversation(f"q {number}")).id for number in range(40)]
    beginnings = [one[:1] for one in ids]
    alike = next(one for one in beginnings if beginnings.count(one) > 1)
    assert store.read(ids[0]).head.id == ids[0]
    for unclear, said in ((alike, " may be .* or "), ("x", "no context 'x' in"), ("", "say more of it")):
        with pytest.raises(UnknownContext, match=said):
            store.read(unclear)
    with pytest.raises(UnknownContext, match="has no version 3; there are 1"):
        store.read(ids[0], 3)


@each("name", ["../secret", "/etc/passwd", "a\0b", "*", "%"])
def test_an_id_leads_nowhere_else(store, name):
    store.keep(context())
    (store.folder.parent / "secret").write_bytes(b"{}")
    with pytest.raises(UnknownContext, match="no context "):
        store.read(name)


def test_without_a_file_there_are_none(store):
    assert store.heads() == []
    assert list(store.search("a")) == []
    assert not store.folder.exists()


def test_what_was_said_is_found_with_the_newest_version_that_has_it(store):
    store.keep(conversation("Find the \N{LATIN SMALL LETTER E WITH ACUTE}clair.", 'He said "no way".', agent="ann"))
    store.keep(conversation("Find the \N{LATIN SMALL LETTER E WITH ACUTE}clair.", agent="ann", answer=ANSWER))
    store.keep(conversation("Nothing of it.", agent="bob", wall=WALL - 5))
    hits = [(head.agent, head.version, at, words) for head, at, words in store.search("the \u00e9CLAIR")]
    assert hits == [("ann", 2, 0, "Find the \u00e9clair.")]
    assert [(head.version, at) for head, at, _ in store.search('"no way"')] == [(1, 1)]
    assert [(head.version, at, words) for head, at, words in store.search("am done")] == [(2, 1, "I am done.")]
    assert [head.agent for head, _, _ in store.search("of it", "b*")] == ["bob"]
    assert list(store.search("of it", "a*")) == []
    (found,) = store.search("nothing")
    assert found[2] == "Nothing of it."


def taken(result_id, text="line 1", wall=WALL):
    return TakenResult(result_id, wall, "agent-1", "s-1", "t-1", Raw(json.dumps(text).encode()))


def test_what_a_compaction_took_out_is_read_by_its_id_until_it_is_too_old(store):
    store.keep_results([taken("abc1"), taken("abd2", "line 2")])
    store.keep_results([taken("abc1", wall=WALL + 86_400 * 30)])
    assert json.loads(bytes(store.result("abd").value)) == "line 2"
    read = store.result("abc1")
    assert (read.agent, read.session, read.call_id, bytes(read.value)) == ("agent-1", "s-1", "t-1", b'"line 1"')
    for unclear, said in (("ab", "may be abc1 or abd2"), ("%", "nothing that was taken out is called '%'")):
        with pytest.raises(UnknownContext, match=said):
            store.result(unclear)
    while store.trim(WALL + 86_400 * 31):
        pass
    assert told(store, "SELECT id FROM taken_out") == "abc1"
    assert store.heads() == []


# What goes wrong -----------------------------------------------------------------------------------------------------


def test_a_process_that_is_killed_while_it_writes_leaves_what_was_there(store):
    """It dies inside of its transaction, with its pages on the disk already."""
    first = store.keep(conversation("a"))
    store.close()
    script = (
        "import os, signal, sqlite3, sys\n"
        "from pathlib import Path\n"
        "from hivemind_addon.plugins.contexts import store as module\n"
        "from tests.plugins.contexts.samples import conversation\n"
        "def die(*_):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "store = module.ContextStore(Path(sys.argv[1]))\n"
        "store._opened().execute('PRAGMA cache_size = 1')\n"
        "module.thin = die\n"
        "store.keep(conversation(*(os.urandom(40_000).hex() for _ in range(9)), 'b'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(store.folder)], check=False, timeout=PATIENCE_S, capture_output=True
    )
    assert done.returncode == -9, done.stderr
    assert store.heads() == [first]
    assert store.keep(conversation("a", "b")).version == 2
    assert told(store, "PRAGMA integrity_check") == "ok"


def test_two_processes_share_a_file(store):
    other = ContextStore(store.folder)
    for number in range(3):
        for one in (store, other):
            head = one.keep(conversation("a", str(number), repr(one is store), spent=Spend(1, 1)))
    assert (head.version, head.spent) == (6, Spend(6, 6))
    store.remove(head.id)
    emptied(other)
    assert store.keep(conversation("a")).version == 1


def test_a_full_disk_is_an_error_that_leaves_what_was_there(store):
    first = store.keep(conversation("a"))
    connection = store._opened()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match="No space left") as raised:
        store.keep(conversation("a", os.urandom(100_000).hex()))
    assert raised.value.errno == errno.ENOSPC
    assert store.heads() == [first]
    connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert store.keep(conversation("a", "c")).version == 2


def test_a_file_that_somebody_else_writes_for_long_is_an_error(store, monkeypatch):
    store.keep(conversation("a"))
    monkeypatch.setattr(module, "BUSY_S", 0.01)
    store.close()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match="locked"):
            store.keep(conversation("a", "b"))
    assert store.keep(conversation("a", "b")).version == 2


def test_a_damaged_version_takes_those_that_are_built_on_it_and_no_others(store):
    head = grown(store, 30)[-1]
    store.close()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        (data,) = connection.execute("SELECT data FROM body WHERE number = 20").fetchone()
        damaged = data[:-6] + bytes(byte ^ 1 for byte in data[-6:])
        connection.execute("UPDATE body SET data = ? WHERE number = 20", (damaged,))
    assert [bool(one.version) for one in store.versions(head.id)] == [True] * 30
    for number in (*range(1, 20), *range(26, 31)):
        assert len(texts_of(store.read(head.id, number))) == 2 * number - 1
    for number in range(20, 26):
        with pytest.raises(
            UnknownContext, match=rf"version {number} of .* is damaged, or a version that it is built on"
        ):
            store.read(head.id, number)
    assert [(one.version, at) for one, at, _ in store.search("text 40 of")] == [(30, 40)]


def test_a_version_after_a_damaged_version_is_complete(store):
    head = grown(store, 3)[-1]
    for statement in ("DELETE FROM body WHERE number = 2", "UPDATE body SET data = x'' WHERE number = 3"):
        store._opened().execute(statement)
        with pytest.raises(UnknownContext, match="damaged"):
            store.read(head.id, 3)
    kept = store.keep(conversation("text 0 of s-1", "new"))
    assert (kept.version, texts_of(store.read(head.id))) == (4, ["text 0 of s-1", "new"])


def test_a_damaged_file_is_set_aside_with_a_word(tmp_path):
    lines = []
    store = ContextStore(tmp_path / "kept", told=lines.append)
    head = grown(store, 3)[-1]
    store.close()
    damaged = bytearray(store.path.read_bytes())
    damaged[4096:] = b"x" * (len(damaged) - 4096)
    store.path.write_bytes(damaged)
    with pytest.raises(OSError, match=r"contexts.db is damaged .*; the proxy sets it aside"):
        store.read(head.id)
    assert store.keep(conversation("a")).version == 1
    (line,) = lines
    (aside,) = store.folder.glob("*.damaged-*")
    assert f"it is {aside} now" in line
    assert len(store.heads()) == 1


def test_what_was_taken_out_is_kept_where_the_file_was_damaged_too(tmp_path):
    lines = []
    store = ContextStore(tmp_path / "kept", told=lines.append)
    store.keep_results([taken("abc1")])
    store.close()
    damaged = store.path.read_bytes()
    store.path.write_bytes(damaged[:4096] + b"x" * (len(damaged) - 4096))
    store.keep_results([taken("abc2")])
    assert store.result("abc2").text == "line 1"
    assert len(lines) == 1


def test_another_process_s_new_file_is_used_where_it_set_the_old_one_aside(store):
    other = ContextStore(store.folder)
    other.keep(conversation("a"))
    store.keep(conversation("a", "b"))
    other.path.rename(other.path.with_name("aside"))
    assert other.keep(conversation("c")).version == 1
    assert store.keep(conversation("c", "d")).version == 2


def test_what_is_no_file_of_ours_is_not_touched(store):
    store.folder.mkdir(parents=True)
    store.path.write_bytes(b"my notes")
    with pytest.raises(FileUnusable, match=r"no file of contexts of ours and is not touched; name another place"):
        store.keep(context())
    assert store.path.read_bytes() == b"my notes"
    with pytest.raises(OSError, match="not a database"):
        store.heads()


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(OSError, match="exists"):
        ContextStore(tmp_path / "kept").keep(context())
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FolderNotPrivate, match="link is not your own"):
        ContextStore(tmp_path / "link").keep(context())
