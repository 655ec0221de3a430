"""The script of the bare mitmdump: streamed answers are streamed."""


def responseheaders(flow):
    flow.response.stream = flow.response.headers.get("content-type", "").startswith("text/event-stream")
