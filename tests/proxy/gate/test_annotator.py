"""Comments and markers, through the real scheduler: one slot, whoever comes second is held."""

import asyncio
import itertools

import pytest
from mitmproxy import http
from mitmproxy.test import taddons
from msgspec.structs import replace

from hivemind_addon.proxy.gate.interfaces.annotation import (
    BYTES_PER_REFRESH,
    GUESS_S,
    LIVE_BODY_BYTES,
    LOOKS_PER_REFRESH,
    LOST,
    WAITS,
    annotation_of,
)
from hivemind_addon.proxy.record.history import PAD
from hivemind_addon.proxy.run.refresh_timer import REFRESHES_PER_S
from tests.proxy.gate.samples import make_flow, make_proxy
from tests.proxy.gate.test_exchange import CONTENT, SSE, START, STOP

FULL = "concurrency limit: 1 of 1 in flight, our maximum"
ONE_SLOT = "extends: anthropic\nconcurrency: {initial: 1, maximum: 1}\n"


class Watcher:
    """Counts what is drawn."""

    def __init__(self):
        self.drawn = []

    def update(self, flows):
        self.drawn.append([flow.id for flow in flows])

    @property
    def flows(self):
        """Their ids, in the order in which they were drawn."""
        return list(itertools.chain.from_iterable(self.drawn))


@pytest.fixture
async def stage(tmp_path):
    (tmp_path / "anthropic.yaml").write_text(ONE_SLOT)
    proxy = make_proxy(tmp_path)
    view = Watcher()
    proxy.annotator.wake = lambda: None
    with taddons.context(view):
        yield proxy, view


def come(proxy, **headers):
    exchange = proxy.make_exchange(make_flow(**headers))
    exchange.enter()
    return exchange


def second_of(proxy):
    return [proxy.annotator.refresh() for _ in range(REFRESHES_PER_S)]


def told(exchange):
    """All but the agent and the ticket, and the marker."""
    columns = exchange.flow.comment.removesuffix(f"[{exchange.ticket.id}]").split(PAD)
    return ", ".join(text for column in columns[1:] if (text := column.strip())), exchange.flow.marked


def deliver(exchange):
    exchange.sent()
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START + CONTENT + STOP)
    exchange.streamed()


async def test_a_held_flow_says_its_place_and_a_running_one_that_it_runs(stage):
    proxy, view = stage
    first, second, third = come(proxy), come(proxy, x_session_id="b"), come(proxy, x_session_id="c")
    second_of(proxy)
    assert told(first) == ("in flight", "")
    assert told(second) == (
        f"queued, 1st, {FULL}",
        WAITS,
    )
    assert told(third) == (f"queued, 2nd, {FULL}, after 1 other", WAITS)
    assert third.flow.comment.startswith(third.ticket.agent)
    assert third.flow.comment.endswith(f" [{third.ticket.id}]")
    assert sorted(view.flows) == sorted(exchange.flow.id for exchange in (first, second, third))


async def test_what_has_not_changed_is_not_drawn_again(stage):
    proxy, view = stage
    come(proxy)
    come(proxy, x_session_id="b")
    second_of(proxy)
    view.drawn.clear()
    assert all(second_of(proxy) + second_of(proxy))
    assert view.drawn == []


def view_of(proxy, exchange, starts_in_s):
    views = (view for pool in proxy.driver.snapshot().pools for view in pool.tickets)
    return replace(next(view for view in views if view.ticket.id == exchange.ticket.id), starts_in_s=starts_in_s)


async def test_a_guess_of_the_start_stands_for_a_while(stage, clock):
    """Else nobody could write a comment in mitmweb while the guess counts down."""
    proxy, _ = stage
    proxy.driver.clock = clock
    held = come(proxy, x_session_id="b"), come(proxy, x_session_id="c")
    told_of = []
    for starts_in_s in (30, 20, 10):
        proxy.annotator._views = {held[1].ticket.id: view_of(proxy, held[1], starts_in_s)}
        proxy.annotator._look(held[1])
        told_of.append(told(held[1])[0])
        clock.advance(GUESS_S * 0.6)
    assert told_of == [f"queued, 1st, in {seconds} s, {FULL}" for seconds in (30, 30, 10)]


async def test_the_end_tells_what_became_of_it(stage):
    proxy, view = stage
    exchange = come(proxy)
    deliver(exchange)
    assert told(exchange) == ("delivered, 5 in + 2 out, $0.0000", "")
    assert annotation_of(exchange.flow).history.end == "delivered"
    second_of(proxy)
    assert view.flows == [exchange.flow.id]
    assert proxy.annotator.refresh() is False


async def test_an_end_that_mitmproxy_has_told_of_is_not_drawn_twice(stage):
    proxy, view = stage
    exchange = come(proxy)
    deliver(exchange)
    exchange.flow.live = False
    assert not any(second_of(proxy))
    assert view.drawn == []


async def test_a_flow_that_goes_on_after_the_snapshot_is_not_called_held(stage):
    proxy, _ = stage
    crowd = [come(proxy, x_session_id=f"s{number}") for number in range(LOOKS_PER_REFRESH + 2)]
    proxy.annotator.refresh()
    deliver(crowd[0])  # another one goes
    late = crowd[-1]
    await asyncio.gather(*(exchange.hold() for exchange in crowd[1:2]))
    proxy.annotator.show(crowd[1])
    proxy.annotator._to_look.appendleft(crowd[1])
    second_of(proxy)
    assert told(crowd[1]) == ("in flight", "")
    assert told(late)[1] == WAITS


async def test_a_lost_one_is_marked(stage):
    proxy, _ = stage
    exchange = come(proxy)
    exchange.sent()
    exchange.head(http.Response.make(400, b"", {}))
    exchange.collected(http.Response.make(400, b"", {}), b"")
    assert told(exchange)[1] == LOST
    assert told(exchange)[0].startswith("gave up, ")


async def test_a_flow_that_begins_to_wait_says_so_before_the_next_look(stage):
    proxy, view = stage
    come(proxy)
    second = come(proxy, x_session_id="b")
    proxy.annotator.show(second)
    assert told(second) == ("queued, 1st, concurrency limit", WAITS)
    proxy.annotator.refresh()
    assert view.drawn[0][0] == second.flow.id


async def test_large_bodies_are_drawn_a_few_at_a_time(stage):
    proxy, view = stage
    content = make_flow().request.content[:-1] + b" " * (BYTES_PER_REFRESH // 3) + b"}"
    for number in range(9):
        come(proxy, content=content, x_session_id=f"s{number}")
    second_of(proxy)
    assert max(len(flows) for flows in view.drawn) == 3
    assert len(view.flows) == 9


async def test_without_a_view_only_the_end_is_written(stage):
    proxy, view = stage
    proxy.annotator.wake = None
    exchange = come(proxy)
    proxy.annotator.show(exchange)
    assert exchange.flow.comment == ""
    deliver(exchange)
    assert told(exchange)[0].startswith("delivered")
    assert view.drawn == []


async def test_without_a_view_and_a_reader_nothing_is_written(stage, monkeypatch):
    monkeypatch.setattr("hivemind_addon.proxy.gate.interfaces.annotation.final_line", None)
    proxy, _ = stage
    proxy.annotator.wake, proxy.annotator.is_read = None, lambda: False
    exchange = come(proxy)
    deliver(exchange)
    assert (exchange.flow.comment, exchange.flow.metadata) == ("", {})
    assert proxy.guard.trips == 0


async def test_an_answer_grows_in_the_flow_while_it_streams(stage):
    proxy, _ = stage
    exchange = come(proxy)
    exchange.sent()
    exchange.flow.response = response = http.Response.make(200, b"", SSE)
    response.data.content = None
    exchange.head(response)
    exchange.look(START + CONTENT)
    body = bytearray(START)
    exchange.released(body)
    second_of(proxy)
    assert response.data.content == START
    body += CONTENT
    second_of(proxy)
    assert response.data.content == START + CONTENT
    body += b"x" * LIVE_BODY_BYTES
    second_of(proxy)
    assert response.data.content == START + CONTENT  # too large to be copied each second
    response.data.content = b"all"
    deliver(exchange)
    second_of(proxy)
    assert response.data.content == b"all"


async def test_a_replay_of_a_flow_gets_a_history_of_its_own(stage):
    proxy, _ = stage
    exchange = come(proxy)
    deliver(exchange)
    again = proxy.make_exchange(exchange.flow)
    again.enter()
    second_of(proxy)
    assert told(again) == ("in flight", "")
    assert again.ticket.id in again.flow.comment


async def test_many_held_flows_are_looked_at_in_pieces(stage):
    proxy, view = stage
    exchanges = [come(proxy, x_session_id=f"s{number}") for number in range(250)]
    proxy.annotator.refresh()
    assert not any(exchange.flow.comment for exchange in exchanges), "a turn for the snapshot"
    proxy.annotator.refresh()
    assert sum(bool(exchange.flow.comment) for exchange in exchanges) == 100
    for _ in range(5 * REFRESHES_PER_S):
        proxy.annotator.refresh()
    assert all(exchange.flow.comment for exchange in exchanges)
    assert len(view.flows) == 250
