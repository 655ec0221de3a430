"""What an agent is told of its own past, from a journal as the schema makes it, and of its contexts."""

import json

import msgspec
import pytest

from hivemind_addon.formats.wire.proxy_user import given_id
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.plugins.contexts.store import Context, ContextHead
from hivemind_addon.proxy.system.clock import SystemClock
from tests.proxy.journal.book import Book, journal_with
from tests.tools.mcp.stage import failing, given


def fill(book: Book) -> None:
    now = SystemClock().wall()
    book.run(began=now - 7200, seen=now, ended=now)
    book.ticket("t-good", agent="one", arrived=now - 60, attempts=2, waited_s=3.21)
    book.attempt("t-good", 1, began=now - 59, outcome="failed", reason="529 overloaded_error", status=529)
    book.attempt("t-good", 2, began=now - 50)
    book.ticket("t-old", agent="one", arrived=now - 7000, end="gave up", task="f/t")
    book.attempt("t-old", 1, began=now - 6990, outcome="failed", reason="cut", ambiguous=1, tokens=10)
    book.ticket("t-theirs", agent="other", arrived=now - 30)


async def test_an_agent_learns_what_ran_and_what_failed(stage):
    journal_with(stage.journal, fill)
    async with stage.client("one") as client:
        told = await given(client, "history")
        assert [one["ticket"] for one in told["requests"]] == ["t-good", "t-old"]
        assert told["text"] == "2 requests, 1 of them delivered."
        good, old = told["requests"]
        assert good["what_happened"].startswith("ran once")
        assert (good["failures"], good["waited_s"]) == (["529 overloaded_error"], 3.2)
        assert (good["input_tokens"], good["output_tokens"], good["usd"]) == (1400, 100, 0.03)
        assert old["what_happened"].startswith("may have run once")
        assert [one["ticket"] for one in (await given(client, "history", hours=1))["requests"]] == ["t-good"]


async def test_one_request_is_found_by_its_id_its_beginning_and_its_task(stage):
    journal_with(stage.journal, fill)
    async with stage.client("one") as client:
        for name in ("t-good", "t-goo"):
            (found,) = (await given(client, "history", name=name))["requests"]
            assert found["ticket"] == "t-good"
        (found,) = (await given(client, "history", name="f/t"))["requests"]
        assert found["ticket"] == "t-old"


async def test_a_long_id_of_the_agents_own_is_found_as_it_was_given(stage):
    long = "k" * 120
    journal_with(stage.journal, lambda book: book.ticket("t-1", agent="one", idempotency_key=given_id(long)))
    async with stage.client("one") as client:
        (found,) = (await given(client, "history", name=long))["requests"]
    assert found["ticket"] == "t-1"


async def test_others_requests_are_as_if_they_were_not_there(stage):
    journal_with(stage.journal, fill)
    async with stage.client("one") as client:
        assert "none of your requests" in await failing(client, "history", name="t-theirs")
        assert "none of your requests" in await failing(client, "history", name="nothing")
    async with stage.client("*") as client:
        assert (await given(client, "history"))["requests"] == []


async def test_without_a_journal_it_says_so_in_one_line(stage):
    async with stage.client("one") as client:
        assert str(stage.journal) in await failing(client, "history")


async def test_the_past_can_be_asked_for_where_no_proxy_runs(stage, runtime):
    folder = runtime / "hivemind_addon"
    folder.mkdir(exist_ok=True)
    journal_with(folder / "journal.db", fill)
    stage.close()
    async with stage.client("one") as client:
        assert len((await given(client, "history"))["requests"]) == 2


BODY = {
    "model": "claude-sonnet-4-5",
    "system": "You are a program.",
    "messages": [
        {"role": "user", "content": "Count the stars."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Look", "input": {"up": True}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Seven."}]},
    ],
}


@pytest.fixture
def keep(stage):
    def keep(
        context_id: str,
        *,
        agent: str = "one",
        kept_wall: float = 1_700_000_000.0,
        parent: str = "",
        question: str = "Count the stars.",
    ) -> None:
        head = ContextHead(
            id=context_id,
            kept_wall=kept_wall,
            agent=agent,
            session=context_id,
            task="",
            model="claude-sonnet-4-5",
            dialect="anthropic",
            host="api.anthropic.com",
            path="/v1/messages",
            reason="budget of agent one is spent",
            messages=3,
            body_bytes=100,
            version=0,
            parent_session=parent,
            tokens=30,
            spent=Spend(40, 2_500_000),
        )
        messages = [{"role": "user", "content": question}, *BODY["messages"][1:]]
        body = msgspec.Raw(json.dumps({**BODY, "messages": messages}).encode())
        made = Context(head=head, method="POST", url="https://api.anthropic.com/v1/messages", headers={}, body=body)
        stage.contexts.keep(made)

    return keep


async def test_an_agent_sees_its_own_ones_only(stage, keep):
    keep("aaa")
    keep("bbb", kept_wall=1_700_000_100.0)
    keep("ccc", agent="other")
    async with stage.client("one") as client:
        listed = await given(client, "contexts")
        assert [one["id"] for one in listed["contexts"]] == ["bbb", "aaa"]
        assert listed["contexts"][1]["kept_at"] == "2023-11-14T22:13:20+00:00"
        assert (listed["contexts"][0]["version"], listed["contexts"][0]["usd"]) == (1, 2.5)
        assert listed["more"] == 0
        assert "none of your contexts may be 'ccc'" in await failing(client, "context_read", id="ccc")
        keep("bbc")
        assert "several of your" in await failing(client, "context_read", id="bb")
        assert "none of your" in await failing(client, "context_read", id="../aaa")


async def test_a_conversation_is_read_in_parts(stage, keep):
    keep("aaa")
    async with stage.client("one") as client:
        whole = await given(client, "context_read", id="aa")
        assert whole["next_offset"] is None
        for words in ("Count the stars.", "Look", "Seven."):
            assert words in whole["text"]
        assert "You are a program." not in whole["text"]
        parts, offset = [], 0
        while offset is not None:
            part = await given(client, "context_read", id="aaa", offset=offset, chars=100)
            parts.append(part["text"])
            offset = part["next_offset"]
        assert "".join(parts) == whole["text"]
        assert len(parts) > 2
        assert (await given(client, "context_read", id="aaa", offset=10**9))["text"] == ""


async def test_an_agent_reads_earlier_versions_and_its_sub_agents_conversations(stage, keep):
    keep("aaa")
    keep("aaa", kept_wall=1_700_000_050.0, question="Count the moons.")
    keep("sub", agent="helper", parent="aaa")
    keep("deep", agent="helper[1]", parent="sub")
    keep("far", agent="helper", parent="nobody")
    async with stage.client("one") as client:
        listed = (await given(client, "contexts"))["contexts"]
        assert {(one["id"], one["agent"], one["version"]) for one in listed} == {
            ("aaa", "one", 2),
            ("sub", "helper", 1),
            ("deep", "helper[1]", 1),
        }
        newest = await given(client, "context_read", id="aaa")
        assert (newest["version"], "moons" in newest["text"]) == (2, True)
        assert "stars" in (await given(client, "context_read", id="aaa", version=1))["text"]
        assert "none of your" in await failing(client, "context_read", id="far")
        await failing(client, "context_read", id="aaa", version=9)
        found = await given(client, "context_search", text="SEVEN")
        assert {hit["id"] for hit in found["hits"]} == {"aaa", "sub", "deep"}
        assert ({hit["message"] for hit in found["hits"]}, found["more"]) == ({3}, False)
        assert (await given(client, "context_search", text="seven", most=2))["more"] is True
        (moons,) = (await given(client, "context_search", text="moons"))["hits"]
        assert (moons["id"], moons["version"]) == ("aaa", 2)
    async with stage.client("helper") as client:
        assert (await given(client, "context_search", text="Count"))["more"] is False
        assert {one["id"] for one in (await given(client, "contexts"))["contexts"]} == {"sub", "deep", "far"}


async def test_who_has_none_gets_an_empty_list(stage):
    async with stage.client("one") as client:
        assert await given(client, "contexts") == {"contexts": [], "more": 0}
    async with stage.client("") as client:
        assert "hivemind exec" in await failing(client, "contexts")
