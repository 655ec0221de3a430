"""An agent's own checkpoints, in the real store."""

import json

import msgspec
import pytest

from hivemind_addon.proxy.checkpoint.model import Checkpoint, CheckpointHead
from tests.mcp.stage import failing, given

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
    def keep(checkpoint_id: str, *, agent: str = "one", kept_wall: float = 1_700_000_000.0) -> None:
        head = CheckpointHead(
            id=checkpoint_id,
            kept_wall=kept_wall,
            agent=agent,
            session=checkpoint_id,
            task="",
            model="claude-sonnet-4-5",
            dialect="anthropic-messages",
            host="api.anthropic.com",
            path="/v1/messages",
            reason="budget of agent one is spent",
            messages=3,
            body_bytes=100,
            thread=checkpoint_id,
        )
        body = msgspec.Raw(json.dumps(BODY).encode())
        made = Checkpoint(head=head, method="POST", url="https://api.anthropic.com/v1/messages", headers={}, body=body)
        stage.checkpoints.keep(made)

    return keep


async def test_an_agent_sees_its_own_ones_only(stage, keep):
    keep("aaa")
    keep("bbb", kept_wall=1_700_000_100.0)
    keep("ccc", agent="other")
    async with stage.client("one") as client:
        listed = await given(client, "checkpoints")
        assert [one["id"] for one in listed["checkpoints"]] == ["bbb", "aaa"]
        assert listed["checkpoints"][1]["kept_at"] == "2023-11-14T22:13:20+00:00"
        assert listed["more"] == 0
        assert "none of your checkpoints may be 'ccc'" in await failing(client, "checkpoint_read", id="ccc")
        keep("bbc")
        assert "several of your" in await failing(client, "checkpoint_read", id="bb")
        assert "none of your" in await failing(client, "checkpoint_read", id="../aaa")


async def test_a_conversation_is_read_in_parts(stage, keep):
    keep("aaa")
    async with stage.client("one") as client:
        whole = await given(client, "checkpoint_read", id="aa")
        assert whole["next_offset"] is None
        for words in ("Count the stars.", "Look", "Seven."):
            assert words in whole["text"]
        assert "You are a program." not in whole["text"]
        parts, offset = [], 0
        while offset is not None:
            part = await given(client, "checkpoint_read", id="aaa", offset=offset, chars=100)
            parts.append(part["text"])
            offset = part["next_offset"]
        assert "".join(parts) == whole["text"]
        assert len(parts) > 2
        assert (await given(client, "checkpoint_read", id="aaa", offset=10**9))["text"] == ""


async def test_who_has_none_gets_an_empty_list(stage):
    async with stage.client("one") as client:
        assert await given(client, "checkpoints") == {"checkpoints": [], "more": 0}
    async with stage.client("") as client:
        assert "hivemind exec" in await failing(client, "checkpoints")
