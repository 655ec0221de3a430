import asyncio
import json
import threading

import pytest
from msgspec.structs import replace

from hivemind_addon.api.events import CheckpointKept
from hivemind_addon.api.spend import Budget, Period, Scope, Shortage
from hivemind_addon.api.ticket import CallKind
from hivemind_addon.proxy.checkpoint.store import CheckpointStore, NotKept
from hivemind_addon.proxy.mitm import keeping
from hivemind_addon.proxy.mitm.keeping import ConversationKeeper, reason_of, sent_request
from hivemind_addon.proxy.profile.load import load_profiles
from tests.dialects import ANTHROPIC
from tests.patience import PATIENCE_S
from tests.proxy.checkpoint.samples import sent
from tests.proxy.core.samples import ticket
from tests.proxy.mitm.samples import make_flow, make_proxy

SHORT = Shortage(Budget(Scope.AGENT, "agent-7", Period.DAY, tokens=60), "tokens", 60, 60, 0, 10, None)


@pytest.fixture
async def proxy():
    return make_proxy()


@pytest.fixture
async def keeper(proxy, tmp_path):
    keeper = ConversationKeeper(CheckpointStore(tmp_path / "kept"), proxy.driver)
    yield keeper
    await keeper.close()


def told(proxy):
    return [(event.checkpoint_id, event.reason) for event in proxy.heard if isinstance(event, CheckpointKept)]


class SlowStore:
    """A disk that answers when the test says so."""

    def __init__(self):
        self.go = threading.Event()
        self.began = threading.Event()
        self.kept = []

    def keep(self, checkpoint):
        self.began.set()
        assert self.go.wait(PATIENCE_S)
        self.kept.append(checkpoint.head.id)
        return checkpoint.head


class BrokenStore:
    def __init__(self, error):
        self.error = error

    def keep(self, checkpoint):
        raise self.error


async def test_a_conversation_is_on_disk_when_its_id_is_known_and_an_event_says_so(proxy, keeper):
    assert await keeper.keep(ticket("t-1"), sent, SHORT) == "t-1"
    assert (
        keeper.store.read("t-1").head.reason == "the budget of agent agent-7 per day was spent: 60 tokens of 60 tokens"
    )
    assert told(proxy) == [("t-1", "")]


async def test_the_same_request_again_has_the_same_checkpoint_and_is_told_of_once(proxy, keeper):
    ids = [await keeper.keep(ticket(name, request_hash="h"), sent, SHORT) for name in ("t-1", "t-2", "t-3")]
    assert ids == ["t-1"] * 3
    assert told(proxy) == [("t-1", "")]


async def test_a_title_is_not_kept(proxy, keeper):
    assert await keeper.keep(replace(ticket("t-1"), kind=CallKind.AUXILIARY), sent, SHORT) == ""
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
    assert await keeper.keep(ticket("t-1"), sent, SHORT) == ""
    assert told(proxy) == [("", reason)]
    await keeper.close()
    assert await keeper.keep(ticket("t-2"), sent, SHORT) == ""
    assert "shutdown" in told(proxy)[-1][1]


async def test_a_request_that_cannot_be_read_raises_nothing(proxy, keeper):
    def read():
        raise ValueError("odd")

    assert await keeper.keep(ticket("t-1"), read, SHORT) == ""
    assert told(proxy) == [("", "ValueError: odd")]


async def test_a_disk_that_hangs_is_waited_for_a_while_and_what_it_writes_later_is_told(proxy, monkeypatch):
    monkeypatch.setattr(keeping, "PATIENCE_S", 0.01)
    store = SlowStore()
    keeper = ConversationKeeper(store, proxy.driver)
    assert await keeper.keep(ticket("t-1"), sent, SHORT) == ""
    assert told(proxy) == [("", "not on disk after 0.01 s; it is still being written")]
    store.go.set()
    await keeper.close()
    assert store.kept == ["t-1"]
    assert told(proxy)[1:] == [("t-1", "")]


async def test_what_waits_for_the_disk_is_bounded(proxy, monkeypatch):
    monkeypatch.setattr(keeping, "PATIENCE_S", 0.01)
    monkeypatch.setattr(keeping, "MAX_WAITING_BYTES", 2 * len(sent().body))
    store = SlowStore()
    keeper = ConversationKeeper(store, proxy.driver)
    for name in ("t-1", "t-2", "t-3"):
        await keeper.keep(ticket(name), sent, SHORT)
    assert told(proxy)[-1] == ("", "the disk is too slow")
    store.go.set()
    await keeper.close()
    assert store.kept == ["t-1", "t-2"]
    assert keeper._waiting_bytes == 0


async def test_a_disk_that_hangs_does_not_keep_a_stopping_proxy(proxy, monkeypatch):
    monkeypatch.setattr(keeping, "PATIENCE_S", 0.01)
    monkeypatch.setattr(keeping, "CLOSING_S", 0.01)
    store = SlowStore()
    keeper = ConversationKeeper(store, proxy.driver)
    await keeper.keep(ticket("t-1"), sent, SHORT)
    async with asyncio.timeout(PATIENCE_S):
        await keeper.close()
    store.go.set()


async def test_who_stops_waiting_does_not_stop_the_writing(proxy):
    store = SlowStore()
    keeper = ConversationKeeper(store, proxy.driver)
    waiting = asyncio.ensure_future(keeper.keep(ticket("t-1"), sent, SHORT))
    await asyncio.to_thread(store.began.wait, PATIENCE_S)
    waiting.cancel()
    await asyncio.wait([waiting])
    store.go.set()
    await keeper.close()
    assert store.kept == ["t-1"]


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
