import io

import pytest
from mitmproxy.io import FlowReader, FlowWriter
from mitmproxy.test import tflow

from hivemind_addon.proxy.gate.interfaces.annotation import annotation_of, is_touched, write, written_of
from hivemind_addon.proxy.record.history import Moment, TicketHistory

HISTORY = TicketHistory(ticket_id="t1", agent="agent-7", moments=[Moment(0.5, "held")])
GLASS = ":hourglass_flowing_sand:"


@pytest.fixture
def flow():
    return tflow.tflow(resp=True)


def test_ours_is_replaced_by_ours(flow):
    assert write(flow, "openai-chat", HISTORY, "held", GLASS)
    assert (flow.comment, flow.marked) == ("held", GLASS)
    assert not write(flow, "openai-chat", HISTORY, "held", GLASS)
    assert write(flow, "openai-chat", HISTORY, "in flight", "")
    assert (flow.comment, flow.marked) == ("in flight", "")
    assert not is_touched(flow)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_persons_own_comment_and_marker_stay(flow, when):
    if when == "meanwhile":
        write(flow, "openai-chat", HISTORY, "held", GLASS)
    flow.comment, flow.marked = "look at this", ":red_circle:"
    write(flow, "openai-chat", HISTORY, "in flight", "")
    write(flow, "openai-chat", HISTORY, "delivered", "")
    assert (flow.comment, flow.marked) == ("look at this", ":red_circle:")
    assert is_touched(flow)
    assert annotation_of(flow).comment == "delivered"


def test_a_marker_alone_is_touched(flow):
    write(flow, "openai-chat", HISTORY, "held", GLASS)
    flow.marked = ":red_circle:"
    assert is_touched(flow)


def test_it_goes_into_a_file_and_back(flow):
    write(flow, "openai-chat", HISTORY, "held", GLASS)
    file = io.BytesIO()
    FlowWriter(file).add(flow)
    file.seek(0)
    (read,) = FlowReader(file).stream()
    assert annotation_of(read) == annotation_of(flow)
    assert annotation_of(read).history == HISTORY
    assert written_of(read).comment == "held"


def test_what_is_none_is_none(flow):
    assert annotation_of(flow) is None
    flow.metadata["hivemind"] = {"of": "another version"}
    assert annotation_of(flow) is None
    flow.metadata["hivemind"] = "a text"
    assert annotation_of(flow) is None
    assert written_of(flow).comment == ""
    assert write(flow, "openai-chat", HISTORY, "held", GLASS)
