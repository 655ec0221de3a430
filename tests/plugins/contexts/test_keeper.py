import asyncio
import gc
import gzip
import json
import logging
import threading
from copy import copy

import pytest
from mitmproxy import http
from msgspec import Raw
from msgspec.structs import replace

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.kernel.values.events import ContextKept
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Shortage
from hivemind_addon.kernel.values.ticket import CallKind
from hivemind_addon.plugins.contexts import handover
from hivemind_addon.plugins.contexts import keeper as keeping
from hivemind_addon.plugins.contexts.compaction import TakenOut
from hivemind_addon.plugins.contexts.handover import sent_request
from hivemind_addon.plugins.contexts.keeper import ConversationKeeper, reason_of
from hivemind_addon.plugins.contexts.newest_requests import HeldRequest
from hivemind_addon.plugins.contexts.policy import parse_policy
from hivemind_addon.plugins.contexts.store import ContextStore, KeepRule, NotKept, TakenResult, UnknownContext
from tests.dialects import ANTHROPIC
from tests.patience import PATIENCE_S
from tests.proxy.gate.samples import make_flow, make_proxy

SHORT = Shortage(Budget(Scope.AGENT, "agent-7", Period.DAY, tokens=60), "tokens", 60, 60, 0, 10, None)
ANSWER = json.dumps(
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Done."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 50, "output_tokens": 7},
    }
).encode()
RESPONSES = "https://api.openai.com/v1/responses"


@pytest.fixture
async def proxy():
    return make_proxy()


@pytest.fixture
def store(tmp_path):
    return ContextStore(tmp_path / "kept")


@pytest.fixture
async def keeper(proxy, store):
    keeper = ConversationKeeper(store, proxy.driver)
    yield keeper
    await keeper.close()


@pytest.fixture
async def keeper_by(proxy, store):
    """One by a policy; closed, all of it is written."""
    keepers = []

    def keeper_by(policy, store=store):
        keepers.append(ConversationKeeper(store, proxy.driver, parse_policy(policy)))
        return keepers[-1]

    yield keeper_by
    for keeper in keepers:
        await keeper.close()


def told(proxy):
    return [(event.context_id, event.reason) for event in proxy.heard if isinstance(event, ContextKept)]


def exchange_of(proxy, *texts, keeper=None, session="s-1", url=None, kind=None, **members):
    """A request whose messages are these; `members` are others of its body."""
    said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": said} | members
    if url is not None:
        body |= {"input": body.pop("messages")}
    flow = make_flow(url or "https://api.anthropic.com/v1/messages", content=json.dumps(body).encode(), session_id="")
    flow.request.headers["x-claude-code-session-id" if url is None else "session_id"] = session
    exchange = proxy.make_exchange(flow)
    exchange.keeper = keeper
    if kind is not None:
        exchange.ticket = replace(exchange.ticket, kind=kind)
    return exchange


def answered(exchange, body=ANSWER, **headers):
    """Its whole way, to a plain answer."""
    assert exchange.enter()
    exchange.sent()
    plain = gzip.decompress(body) if "content_encoding" in headers else body
    response = http.Response.make(200, b"", {"content-type": "application/json"})
    response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    response.raw_content = body
    exchange.flow.response = response
    exchange.head(response)
    assert not exchange.collected(response, body), plain
    return exchange


def texts_of(context):
    return [message["content"] for message in json.loads(bytes(context.body))["messages"]]


async def quiet(keeper):
    async with asyncio.timeout(PATIENCE_S):
        await keeper._quiet.wait()


class SlowStore:
    """A disk that answers when the test says so."""

    def __init__(self):
        self.go = threading.Event()
        self.began = threading.Event()
        self.kept = []

    def keep(self, context, **_):
        self.began.set()
        assert self.go.wait(PATIENCE_S)
        self.kept.append(context.head.ticket_id)
        return context.head

    def keep_all(self, contexts):
        return [self.keep(context) for context in contexts]

    def trim(self, _):
        return False


class BrokenStore:
    def __init__(self, error):
        self.error = error

    def keep(self, context, **_):
        if self.error:
            raise copy(self.error)  # whose traceback nobody else has
        return context.head

    def keep_all(self, contexts):
        return [self.keep(context) for context in contexts]

    def trim(self, _):
        return False


# By the policy -------------------------------------------------------------------------------------------------------


async def test_by_turn_each_request_is_kept_with_its_answer_and_what_it_spent(proxy, store, keeper_by):
    keeper = keeper_by("turn")
    first = answered(exchange_of(proxy, "a", keeper=keeper))
    await quiet(keeper)
    (head,) = store.heads()
    assert (head.reason, head.ticket_id, head.tokens, head.spent.tokens) == ("turn", first.ticket.id, 50, 57)
    assert store.read(head.id).answer == ANSWER
    answered(exchange_of(proxy, "a", "Done.", "b", keeper=keeper), gzip.compress(ANSWER), content_encoding="gzip")
    await quiet(keeper)
    newest = store.read(head.id)
    assert (newest.head.version, texts_of(newest), newest.answer) == (2, ["a", "Done.", "b"], ANSWER)
    assert newest.head.spent.tokens == 114
    assert told(proxy) == [(head.id, "")] * 2
    assert all(event.is_routine for event in proxy.heard if isinstance(event, ContextKept))


async def test_by_idle_only_the_newest_is_kept_and_only_once_its_session_is_silent(
    proxy, store, keeper_by, monkeypatch
):
    keeper = keeper_by("idle")
    for texts in (("a",), ("a", "Done.", "b")):
        answered(exchange_of(proxy, *texts, keeper=keeper))
    assert store.heads() == []
    later = proxy.driver.clock.monotonic() + 31
    monkeypatch.setattr(proxy.driver.clock, "monotonic", lambda: later)
    keeper._look()
    await quiet(keeper)
    (head,) = store.heads()
    assert (head.version, head.reason, head.messages, head.spent.tokens) == (1, "idle", 3, 114)


async def test_what_is_held_is_kept_at_the_end_and_where_the_policy_changes(proxy, store, keeper_by):
    keeper = keeper_by("end")
    answered(exchange_of(proxy, "a", keeper=keeper))
    keeper.follow(parse_policy("end"))
    assert store.heads() == []
    keeper.follow(parse_policy("every:9"))
    await quiet(keeper)
    assert [head.reason for head in store.heads()] == ["end"]
    answered(exchange_of(proxy, "a", "Done.", "b", keeper=keeper))
    await keeper.close()
    (head,) = store.heads()
    assert (head.version, head.reason) == (2, "end")


class OneFailsStore(ContextStore):
    """Cannot write what a session says, and tells how many were written at once."""

    def __init__(self, folder):
        super().__init__(folder)
        self.batches = []

    def keep_all(self, contexts, **more):
        if any(context.head.session == "bad" for context in contexts):
            raise ValueError("ours")
        self.batches.append(len(contexts))
        return super().keep_all(contexts, **more)


async def test_all_that_are_due_are_written_together_and_one_that_cannot_be_is_alone(
    proxy, tmp_path, keeper_by, monkeypatch
):
    monkeypatch.setattr(keeping, "_BATCH", 4)
    store = OneFailsStore(tmp_path / "kept")
    keeper = keeper_by("end", store)
    for session in ("s-1", "s-2", "s-3", "s-4", "s-5", "bad", "s-6"):
        answered(exchange_of(proxy, "a", keeper=keeper, session=session))
    await keeper.write_held()
    assert {head.session for head in store.heads()} == {f"s-{number}" for number in range(1, 7)}
    assert store.batches == [4, 1, 1]
    assert [(bool(name), reason) for name, reason in told(proxy)] == [
        *[(True, "")] * 5,
        (False, "ValueError: ours"),
        (True, ""),
    ]
    assert keeper._waiting_bytes == 0


async def test_what_is_no_conversation_is_nobody_s_loss_beside_others_that_are(proxy, store, keeper_by):
    keeper = keeper_by("end")
    for texts in (("a",), (), ("b",)):
        answered(exchange_of(proxy, *texts, keeper=keeper))
    await keeper.write_held()
    assert sorted(texts_of(store.read(head.id))[0] for head in store.heads()) == ["a", "b"]
    assert all(name for name, _ in told(proxy))


@pytest.mark.parametrize("error", [None, OSError(28, "No space left on device")], ids=["no conversation", "full disk"])
async def test_a_request_that_is_not_kept_is_freed_without_the_collector(proxy, keeper_by, error):
    keeper = keeper_by("turn", BrokenStore(error))
    gc.collect()
    gc.disable()
    try:
        answered(exchange_of(proxy, *(("a",) if error else ()), keeper=keeper))
        await quiet(keeper)
        keeper._thread.shutdown()  # else the thread may still have the request
        assert [one for one in gc.get_objects() if type(one) is HeldRequest] == []
    finally:
        gc.enable()


async def test_without_a_policy_nothing_is_held(proxy, store, keeper):
    answered(exchange_of(proxy, "a", keeper=keeper))
    await keeper.write_held()
    await keeper.close()
    assert store.heads() == []


async def test_a_title_is_no_conversation_and_what_holds_none_is_nobody_s_loss(proxy, store, keeper_by):
    keeper = keeper_by("turn")
    answered(exchange_of(proxy, "a", keeper=keeper, kind=CallKind.AUXILIARY))
    answered(exchange_of(proxy, keeper=keeper))
    await keeper.close()
    assert store.heads() == []
    assert told(proxy) == []


async def test_an_answer_that_was_cut_is_not_kept_but_the_request_is(proxy, store, keeper_by):
    keeper = keeper_by("turn")
    exchange = exchange_of(proxy, "a", keeper=keeper)
    assert exchange.enter()
    exchange.sent()
    exchange.flow.response = http.Response.make(200, ANSWER, {"content-type": "application/json"})
    exchange.head(exchange.flow.response)
    exchange.client_gone()
    await quiet(keeper)
    (head,) = store.heads()
    assert (head.answer_bytes, texts_of(store.read(head.id))) == (0, ["a"])


async def test_a_request_that_names_an_earlier_answer_is_kept_with_all_that_was_said(proxy, store, keeper_by):
    keeper = keeper_by("idle")
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]}
    for number, text in enumerate("abc"):
        names = {"previous_response_id": f"resp_{number - 1}"} if number else {}
        exchange = exchange_of(proxy, text, keeper=keeper, url=RESPONSES, model="gpt-6.1-sol", **names)
        whole = {"id": f"resp_{number}", "object": "response", "status": "completed", "output": [said]}
        answered(exchange, json.dumps(whole | {"usage": {"input_tokens": 5, "output_tokens": 2}}).encode())
    await keeper.close()
    (head,) = store.heads()
    kept = json.loads(bytes(store.read(head.id).body))
    assert "previous_response_id" not in kept
    user = [{"role": "user", "content": text} for text in "abc"]
    assert kept["input"] == [user[0], said, user[1], said, user[2]]
    assert head.version == 3


async def test_a_request_whose_past_nobody_has_is_not_kept_which_is_told_once(proxy, store, keeper_by):
    keeper = keeper_by("idle")
    for number in range(2):
        exchange = exchange_of(proxy, "a", keeper=keeper, url=RESPONSES, previous_response_id=f"resp_{number}")
        answered(exchange, json.dumps({"id": f"resp_{number + 7}", "output": []}).encode())
    await keeper.close()
    assert store.heads() == []
    ((context_id, reason),) = told(proxy)
    assert context_id == ""
    assert "previous_response_id" in reason


async def test_a_turn_of_a_web_socket_goes_on_from_its_warm_up_and_its_answer_is_its_frames(proxy, store, keeper_by):
    keeper = keeper_by("turn")
    exchange = exchange_of(proxy, "b", keeper=keeper, url=RESPONSES, previous_response_id="resp_0")
    exchange.warm_up = json.dumps({"type": "response.create", "input": [{"role": "user", "content": "a"}]}).encode()
    done = {"type": "response.completed", "response": {"id": "resp_1", "output": []}}
    exchange.frames = [("response.completed", json.dumps(done).encode())]
    answered(exchange, json.dumps({"id": "resp_1", "output": []}).encode())
    await keeper.close()
    (head,) = store.heads()
    kept = store.read(head.id)
    assert [item["content"] for item in json.loads(bytes(kept.body))["input"]] == ["a", "b"]
    assert kept.answer == b"event: response.completed\ndata: " + json.dumps(done).encode() + b"\n\n"
    assert store.answered_as("resp_1").head == head


async def test_a_disk_that_fails_loses_contexts_and_says_so_once_each_time(proxy, keeper_by, caplog):
    broken = BrokenStore(OSError(28, "No space left on device"))
    keeper = keeper_by("turn", broken)
    for text in "ab":
        answered(exchange_of(proxy, text, keeper=keeper))
        await quiet(keeper)
    assert told(proxy) == [("", "No space left on device")]
    broken.error = None
    with caplog.at_level(logging.INFO, "hivemind"):
        answered(exchange_of(proxy, "c", keeper=keeper))
        await quiet(keeper)
    assert "contexts are kept again; 2 requests missing" in caplog.text
    broken.error = OSError(5, "Input/output error")
    answered(exchange_of(proxy, "d", keeper=keeper))
    await quiet(keeper)
    assert told(proxy)[-1] == ("", "Input/output error")


async def test_what_waits_for_a_slow_disk_is_bounded_and_a_refusal_waits_for_one_of_it(proxy, keeper_by, monkeypatch):
    monkeypatch.setattr(keeping, "PATIENCE_S", 0.01)
    slow = SlowStore()
    keeper = keeper_by("turn", slow)
    first = answered(exchange_of(proxy, "a", keeper=keeper))
    await asyncio.to_thread(slow.began.wait, PATIENCE_S)
    monkeypatch.setattr(keeping, "MAX_WAITING_BYTES", 4 * (keeper._waiting_bytes + 10))
    second = answered(exchange_of(proxy, "b", keeper=keeper))
    answered(exchange_of(proxy, "c", keeper=keeper))
    assert told(proxy) == [("", "the disk is too slow")]
    refused = exchange_of(proxy, "d")
    assert await keeper.keep(refused, SHORT) == ""
    slow.go.set()
    await keeper.close()
    assert slow.kept == [first.ticket.id, refused.ticket.id, second.ticket.id]
    assert keeper._waiting_bytes == 0


async def test_what_a_budget_stops_stays_the_newest_of_its_conversation(proxy, store, keeper_by):
    keeper = keeper_by("idle")
    answered(exchange_of(proxy, "a", keeper=keeper))
    kept = await keeper.keep(exchange_of(proxy, "a", "Done.", "b"), SHORT)
    await keeper.close()
    (head,) = store.versions(kept)
    assert (head.messages, head.spent.tokens) == (3, 57)


# For a spent budget --------------------------------------------------------------------------------------------------


async def test_a_conversation_is_on_disk_when_its_id_is_known_and_an_event_says_so(proxy, keeper):
    kept = await keeper.keep(exchange_of(proxy, "a"), SHORT)
    assert (
        keeper.store.read(kept).head.reason == "the budget of agent agent-7 per day was spent: 60 tokens of 60 tokens"
    )
    assert told(proxy) == [(kept, "")]
    assert not any(event.is_routine for event in proxy.heard if isinstance(event, ContextKept))


async def test_the_same_request_again_has_the_same_context_and_is_told_of_once(proxy, keeper):
    ids = [await keeper.keep(exchange_of(proxy, "a"), SHORT) for _ in range(3)]
    assert len(set(ids)) == 1
    assert told(proxy) == [(ids[0], "")]


async def test_a_title_is_not_kept(proxy, keeper):
    assert await keeper.keep(exchange_of(proxy, "a", kind=CallKind.AUXILIARY), SHORT) == ""
    assert told(proxy) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (NotKept("there is no conversation in it"), "there is no conversation in it"),
        (RuntimeError("ours"), "RuntimeError: ours"),
    ],
)
async def test_whatever_goes_wrong_is_told_and_raises_nothing(proxy, error, reason):
    keeper = ConversationKeeper(BrokenStore(error), proxy.driver)
    assert await keeper.keep(exchange_of(proxy, "a"), SHORT) == ""
    assert told(proxy) == [("", reason)]
    await keeper.close()
    assert await keeper.keep(exchange_of(proxy, "b"), SHORT) == ""
    assert "shutdown" in told(proxy)[-1][1]
    keeper.ended(exchange_of(proxy, "c"))


async def test_a_request_that_cannot_be_read_raises_nothing(proxy, keeper, monkeypatch):
    def read(*_):
        raise ValueError("odd")

    monkeypatch.setattr(handover, "sent_request", read)
    assert await keeper.keep(exchange_of(proxy, "a"), SHORT) == ""
    assert told(proxy) == [("", "ValueError: odd")]


async def test_a_disk_that_hangs_is_waited_for_a_while_and_what_it_writes_later_is_told(proxy, monkeypatch):
    monkeypatch.setattr(keeping, "PATIENCE_S", 0.01)
    store = SlowStore()
    keeper = ConversationKeeper(store, proxy.driver)
    exchange = exchange_of(proxy, "a")
    assert await keeper.keep(exchange, SHORT) == ""
    assert told(proxy) == [("", "not on disk after 0.01 s; it is still being written")]
    store.go.set()
    await keeper.close()
    assert store.kept == [exchange.ticket.id]
    assert [reason for _, reason in told(proxy)[1:]] == [""]


async def test_a_disk_that_hangs_does_not_keep_a_stopping_proxy(proxy, monkeypatch):
    monkeypatch.setattr(keeping, "PATIENCE_S", 0.01)
    monkeypatch.setattr(keeping, "CLOSING_S", 0.01)
    store = SlowStore()
    keeper = ConversationKeeper(store, proxy.driver, parse_policy("turn"))
    await keeper.keep(exchange_of(proxy, "a"), SHORT)
    answered(exchange_of(proxy, "b", keeper=keeper))
    async with asyncio.timeout(PATIENCE_S):
        await keeper.close()
    store.go.set()


async def test_who_stops_waiting_does_not_stop_the_writing(proxy):
    store = SlowStore()
    keeper = ConversationKeeper(store, proxy.driver)
    exchange = exchange_of(proxy, "a")
    waiting = asyncio.ensure_future(keeper.keep(exchange, SHORT))
    await asyncio.to_thread(store.began.wait, PATIENCE_S)
    waiting.cancel()
    await asyncio.wait([waiting])
    store.go.set()
    await keeper.close()
    assert store.kept == [exchange.ticket.id]


def test_a_request_is_read_without_its_credentials_and_its_connection():
    flow = make_flow(
        "https://api.anthropic.com:8443/v1/messages?beta=true&key=AIzaSECRET&secretword",
        authorization="Bearer SECRET",
        x_api_key="sk-SECRET",
        cookie="SECRET",
        anthropic_version="2023-06-01",
        x_claude_code_session_id="s-1",
        idempotency_key="SECRET-too",
        accept_encoding="gzip",
    )
    profile = load_profiles(None).by_name["anthropic"]
    read = sent_request(flow, profile, ANTHROPIC)
    assert read.url == "https://api.anthropic.com:8443/v1/messages?beta=true"
    assert read.headers == {"anthropic-version": "2023-06-01", "x-claude-code-session-id": "s-1"}
    assert json.loads(read.body)["messages"]
    assert "SECRET" not in repr(read)


def test_a_host_is_the_one_that_the_client_means():
    flow = make_flow("https://127.0.0.1/v1/messages", sni="api.anthropic.com")
    profile = load_profiles(None).by_name["anthropic"]
    read = sent_request(flow, profile, ANTHROPIC)
    assert read.url == "https://api.anthropic.com/v1/messages"


def test_why_it_is_kept_names_the_holder_and_the_period():
    short = Shortage(
        Budget(Scope.EVERYONE, "", Period.MONTH, micro_usd=5), "micro_usd", 5_000_000, 5_100_000, 0, 1, None
    )
    assert reason_of(short) == "the budget of everyone per month was spent: $5.10 of $5.00"


def test_a_budget_that_is_not_spent_but_too_small_is_told_so():
    assert reason_of(SHORT).endswith("was spent: 60 tokens of 60 tokens")
    small = Shortage(SHORT.budget, "tokens", 60, 50, 0, 90, None)
    assert reason_of(small).endswith("had too little left: 50 tokens of 60 tokens")


# What a compaction took out ------------------------------------------------------------------------------------------


def took(name, value=b'"line 1"'):
    return TakenOut(name, "toolu_1", value)


async def test_what_was_taken_out_is_written_once_and_again_when_it_may_be_gone(proxy, store, keeper, monkeypatch):
    assert keeper.keep_results("a", "s", [took("abc1"), took("abc2")]) == 2
    assert keeper.keep_results("a", "s", [took("abc1"), took("abc3")]) == 1
    await quiet(keeper)
    store.path.unlink()
    assert keeper.keep_results("a", "s", [took("abc1")]) == 0
    later = proxy.driver.clock.monotonic() + keeping.RESULTS_KNOWN_S + 1
    monkeypatch.setattr(proxy.driver.clock, "monotonic", lambda: later)
    assert keeper.keep_results("a", "s", [took("abc1")]) == 0  # it is nothing new, but it is there again
    await quiet(keeper)
    assert store.result("abc1").text == "line 1"


async def test_nothing_is_taken_out_any_more_where_it_would_not_be_kept(proxy, keeper):
    await keeper.close()
    assert keeper.lost_results
    assert keeper.keep_results("a", "s", [took("abc1")]) == 0


# What is too much ----------------------------------------------------------------------------------------------------


class FullStore(SlowStore):
    """There is always more to delete."""

    def __init__(self):
        super().__init__()
        self.trims = 0
        self.go.set()

    def trim(self, _):
        self.trims += 1
        self.began.set()
        return True


@pytest.mark.parametrize("why", ["budget", "result"])
async def test_whatever_is_written_the_file_is_made_smaller_though_no_policy_keeps_anything(proxy, tmp_path, why):
    store = ContextStore(tmp_path / "kept", retention=KeepRule(age_s=60))
    long_ago = proxy.driver.clock.wall() - 3600
    store.keep_results([TakenResult("old1", long_ago, "a", "s", "", Raw(b'"x"'))])
    keeper = ConversationKeeper(store, proxy.driver)
    if why == "budget":
        assert await keeper.keep(exchange_of(proxy, "a"), SHORT)
    else:
        keeper.keep_results("a", "s", [took("abc1")])
    await keeper.close()
    with pytest.raises(UnknownContext):
        store.result("old1")


async def test_a_refusal_does_not_wait_until_all_that_is_too_much_is_deleted(proxy):
    store = FullStore()
    keeper = ConversationKeeper(store, proxy.driver)
    assert await keeper.keep(exchange_of(proxy, "a"), SHORT)
    await asyncio.to_thread(store.began.wait, PATIENCE_S)
    assert await keeper.keep(exchange_of(proxy, "b"), SHORT)  # else it would take two seconds, and then be told
    assert told(proxy)[-1][1] == ""
    assert store.trims
    keeper._has_ended = True
    await keeper.close()


async def test_what_cannot_be_deleted_now_was_kept_all_the_same(proxy):
    store = BrokenStore(None)
    store.trim = lambda _: (_ for _ in ()).throw(OSError(5, "database is locked"))
    keeper = ConversationKeeper(store, proxy.driver, parse_policy("turn"))
    answered(exchange_of(proxy, "a", keeper=keeper))
    await keeper.close()
    ((context_id, reason),) = told(proxy)
    assert (bool(context_id), reason) == (True, "")
