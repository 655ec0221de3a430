"""The script of the bare mitmdump: streamed answers are streamed."""

_STREAMS = ("text/event-stream", "application/vnd.amazon.eventstream")


def responseheaders(flow):
    flow.response.stream = flow.response.headers.get("content-type", "").startswith(_STREAMS)
