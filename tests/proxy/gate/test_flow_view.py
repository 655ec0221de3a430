import pytest
from mitmproxy.addons.view import View
from mitmproxy.test import taddons, tflow

from hivemind_addon.proxy.gate.interfaces.annotation import write
from hivemind_addon.proxy.gate.interfaces.flow_view import (
    MOST_PER_REFRESH,
    Retention,
    ViewSync,
    size_of,
)
from hivemind_addon.proxy.gate.options import parse_keep
from hivemind_addon.proxy.gate.settings import Keep
from hivemind_addon.proxy.record.history import TicketHistory
from hivemind_addon.proxy.run.option_table import VIEW_KEEP
from hivemind_addon.proxy.run.refresh_timer import REFRESHES_PER_S
from tests.plugins.captures.captured import answered
from tests.proxy.gate.samples import make_flow, make_proxy


def test_an_amount_is_flows_or_a_size_or_both():
    cases = (
        (VIEW_KEEP, Keep(500, 256_000_000)),
        ("off", None),
        ("20", Keep(20, None)),
        ("1 flow", Keep(1, None)),
        ("1 GB", Keep(None, 1_000_000_000)),
        ("10kb, 3", Keep(3, 10_000)),
    )
    assert [(text, keep) for text, keep in cases if parse_keep(text) != keep] == []


def test_anything_else_is_none():
    for text in ("", "many", "-1", "5, 6", "1 MB, 2 MB", "500 256MB", "1.5 GB"):
        with pytest.raises(ValueError, match=r".*"):
            parse_keep(text)


class Stage:
    def __init__(self, keep):
        self.view = View()
        self.keep = keep
        self.retention = Retention(self.view, lambda: self.keep)

    def add(self, *flows):
        for flow in flows:
            self.view.add([flow])
            self.retention.came(flow)

    def settle(self):
        """A second at least."""
        for _ in range(3 * REFRESHES_PER_S):
            self.retention.refresh()
        return list(self.view)


@pytest.fixture
def stage():
    made = Stage(Keep(2))
    with taddons.context(made.view):
        yield made


def make(number=0, *, live=False, size=0):
    flow = tflow.tflow(resp=True)
    flow.request.timestamp_start = number
    flow.request.content, flow.response.content = b"x" * size, b""
    flow.live, flow.client_conn.timestamp_end = live, None
    return flow


def test_the_oldest_finished_flows_leave(stage):
    flows = [make(number) for number in range(5)]
    stage.add(*flows)
    assert stage.settle() == flows[3:]
    assert "2 flows" in repr(stage.retention)


def test_running_held_replayed_marked_and_commented_flows_stay(stage):
    running, held, replayed, marked, commented = kept = [make(number) for number in range(5)]
    running.live = True
    held.live, held.intercepted = True, True
    replayed.is_replay = "request"
    marked.marked = ":red_circle:"
    commented.comment = "look at this"
    others = [make(9), make(10)]
    stage.add(*kept, *others)
    assert stage.settle() == kept
    assert stage.retention.refresh() is True  # two are still running


def test_our_own_comment_and_marker_do_not_count(stage):
    flows = [make(number) for number in range(3)]
    history = TicketHistory(ticket_id="t", agent="a")
    for flow in flows:
        write(flow, "openai-chat", history, "gave up", ":warning:")
    stage.add(*flows)
    assert stage.settle() == flows[1:]


def test_flows_of_a_file_are_not_counted_and_stay(stage):
    loaded = [make(number) for number in range(5)]
    stage.view.add(loaded)
    came = [make(9 + number) for number in range(3)]
    stage.add(*came)
    assert stage.settle() == [*loaded, *came[1:]]


def test_a_size_is_kept_too(stage):
    stage.keep = Keep(None, 2_500)
    flows = [make(number, size=1_000) for number in range(4)]
    stage.add(*flows)
    assert sum(map(size_of, stage.settle())) == 2_000


def test_what_ended_with_its_client_is_finished(stage):
    flows = [make(number, live=True) for number in range(3)]
    stage.add(*flows)
    flows[0].client_conn.timestamp_end = 5.0
    assert stage.settle() == flows[1:]


def test_off_keeps_all(stage):
    stage.keep = None
    flows = [make(number) for number in range(9)]
    stage.add(*flows)
    assert stage.settle() == flows


def test_it_rests_when_nothing_has_come(stage):
    stage.add(make())
    stage.settle()
    assert stage.retention.refresh() is False


def test_a_crowd_leaves_in_pieces(stage):
    stage.add(*[make(number) for number in range(2 * MOST_PER_REFRESH)])
    assert stage.retention.refresh() is True
    assert len(stage.view) == MOST_PER_REFRESH
    assert len(stage.settle()) == 2


def test_flows_that_a_person_cleared_are_forgotten(stage):
    stage.add(make(), make(1))
    stage.settle()
    stage.view.clear()
    stage.add(make(2))
    stage.settle()
    assert "1 flows" in repr(stage.retention)


@pytest.fixture
async def proxy():
    return make_proxy(keep=Keep(1))


@pytest.fixture
def view(proxy):
    with taddons.context(made := View()):
        yield made


async def test_finished_flows_leave_and_nothing_is_refreshed_after_the_end(proxy, view):
    sync = ViewSync(view, proxy)
    for _ in range(3):
        flow = answered(make_flow())
        flow.live = False
        view.add([flow])
        sync.came(flow)
    for _ in range(3 * REFRESHES_PER_S):
        sync._timer.refresh()
    assert len(view) == 1
    sync.came(flow)
    assert "running" in repr(sync)
    sync.stop()
    assert "at rest" in repr(sync)


@pytest.mark.parametrize("does", ["update", "remove"])
async def test_what_a_person_does_to_a_held_flow_is_heard(proxy, view, monkeypatch, does):
    sync = ViewSync(view, proxy)
    exchange = proxy.make_exchange(make_flow())
    nudged = []
    monkeypatch.setattr(proxy, "nudge", nudged.append)
    view.add([exchange.flow, make_flow()])
    getattr(view, does)([exchange.flow])
    assert nudged == [exchange.flow]
    sync.stop()


async def test_live_flows_are_looked_at_while_there_is_a_sync(proxy, view):
    sync = ViewSync(view, proxy)
    proxy.make_exchange(make_flow())
    assert "running" in repr(sync)
    sync.stop()
