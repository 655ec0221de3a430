"""The answer that the dialects' tests give a shape to."""

import json

from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim.dialect import Reply, SimDialect, TaskTurn, ToolCall

REPLY = Reply(
    dialect=SimDialect.MESSAGES,
    request_id="req_000007",
    attempt=2,
    digest="0badcafe",
    model="sim-1",
    input_tokens=40,
    cached_tokens=10,
    output_tokens=5,
    tokens_per_delta=2,
    truncated=False,
    include_usage=False,
)
CALL = ToolCall("call_1", "Bash", '{"command":"echo done"}')
TURN = TaskTurn("Let me look at it.", CALL)


def data_of(event: wire.StreamEvent) -> dict:
    line = next(line for line in event.data.decode().splitlines() if line.startswith("data: "))
    return json.loads(line.removeprefix("data: "))
