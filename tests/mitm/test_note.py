import io

import pytest
from mitmproxy.io import FlowReader, FlowWriter
from mitmproxy.test import tflow

from hivemind_addon.proxy.mitm.note import is_touched, note_of, write, written_of
from hivemind_addon.proxy.observe.story import Moment, Story
from hivemind_addon.proxy.profile.model import DialectName

STORY = Story(ticket_id="t1", agent="agent-7", moments=[Moment(0.5, "held")])
CHAT = DialectName.OPENAI_CHAT
GLASS = ":hourglass_flowing_sand:"


@pytest.fixture
def flow():
    return tflow.tflow(resp=True)


def test_ours_is_replaced_by_ours(flow):
    assert write(flow, CHAT, STORY, "held", GLASS)
    assert (flow.comment, flow.marked) == ("held", GLASS)
    assert not write(flow, CHAT, STORY, "held", GLASS)
    assert write(flow, CHAT, STORY, "in flight", "")
    assert (flow.comment, flow.marked) == ("in flight", "")
    assert not is_touched(flow)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_persons_own_comment_and_marker_stay(flow, when):
    if when == "meanwhile":
        write(flow, CHAT, STORY, "held", GLASS)
    flow.comment, flow.marked = "look at this", ":red_circle:"
    write(flow, CHAT, STORY, "in flight", "")
    write(flow, CHAT, STORY, "delivered", "")
    assert (flow.comment, flow.marked) == ("look at this", ":red_circle:")
    assert is_touched(flow)
    assert note_of(flow).comment == "delivered"


def test_a_marker_alone_is_touched(flow):
    write(flow, CHAT, STORY, "held", GLASS)
    flow.marked = ":red_circle:"
    assert is_touched(flow)


def test_a_note_goes_into_a_file_and_back(flow):
    write(flow, CHAT, STORY, "held", GLASS)
    file = io.BytesIO()
    FlowWriter(file).add(flow)
    file.seek(0)
    (read,) = FlowReader(file).stream()
    assert note_of(read) == note_of(flow)
    assert note_of(read).story == STORY
    assert written_of(read).comment == "held"


def test_what_is_no_note_is_none(flow):
    assert note_of(flow) is None
    flow.metadata["hivemind"] = {"of": "another version"}
    assert note_of(flow) is None
    flow.metadata["hivemind"] = "a text"
    assert note_of(flow) is None
    assert written_of(flow).comment == ""
    assert write(flow, CHAT, STORY, "held", GLASS)
