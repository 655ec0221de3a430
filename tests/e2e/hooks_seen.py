"""A mitmproxy script: addons that do everything an addon may do in a hook, and write down what they see.

The header `x-case` of a request says what is done to it.
"""

import asyncio
import json
from pathlib import Path

from mitmproxy import ctx, exceptions, http


def write(*seen):
    with (Path(ctx.options.confdir) / "seen.jsonl").open("a") as file:
        file.write(json.dumps(seen) + "\n")


def case_of(flow):
    return "connect" if flow.request.method == "CONNECT" else flow.request.headers["x-case"]


def note(addon, hook, flow):
    """How a flow looks in a hook."""
    answer = flow.response
    write(
        case_of(flow),
        f"{addon}.{hook}",
        answer and answer.status_code,
        answer and len(answer.raw_content or b""),
        len(flow.request.raw_content or b""),
        flow.error and flow.error.msg,
        flow.intercepted,
        flow.live,
    )


class Sees:
    """Sees all hooks of flows."""

    def __init__(self, name):
        self.name = name

    def http_connect(self, flow):
        note(self.name, "http_connect", flow)

    def http_connected(self, flow):
        note(self.name, "http_connected", flow)

    def requestheaders(self, flow):
        note(self.name, "requestheaders", flow)

    def request(self, flow):
        note(self.name, "request", flow)

    def responseheaders(self, flow):
        note(self.name, "responseheaders", flow)

    def response(self, flow):
        note(self.name, "response", flow)

    def error(self, flow):
        note(self.name, "error", flow)


class SeesUpdates(Sees):
    def update(self, flows):
        for flow in flows:
            note(self.name, "update", flow)


class Does(Sees):
    """Does what the case says: `<what>` is done in `request`, `<what> in <hook>` elsewhere."""

    def __init__(self):
        super().__init__("does")
        self.guest = Sees("guest")

    def requestheaders(self, flow):
        super().requestheaders(flow)
        self._do("requestheaders", flow)

    async def request(self, flow):
        super().request(flow)
        what = self._do("request", flow)
        if what == "sleep":
            await asyncio.sleep(0.05)
        elif what == "time out":
            try:
                async with asyncio.timeout(0.05):
                    await asyncio.Event().wait()
            except TimeoutError:
                write("time out", "does.request timed out")
        elif what == "sleep, raise":
            await asyncio.sleep(0.01)
            raise ValueError("after a sleep")
        elif what == "sleep, halt":
            await asyncio.sleep(0.01)
            raise exceptions.AddonHalt
        if what:
            note("does", "end of request", flow)

    def responseheaders(self, flow):
        super().responseheaders(flow)
        self._do("responseheaders", flow)

    def response(self, flow):
        super().response(flow)
        self._do("response", flow)

    def _do(self, hook, flow):
        what, _, where = case_of(flow).partition(" in ")
        if hook != (where or "request"):
            return None
        loop = asyncio.get_running_loop()
        match what:
            case "raise":
                raise ValueError(f"raised in {hook}")
            case "halt":
                raise exceptions.AddonHalt
            case "answer" if hook == "responseheaders":
                fields = flow.response.headers
                flow.response = http.Response.make(201)
                flow.response.headers = fields  # the body comes yet, and is as long
            case "answer":
                flow.response = http.Response.make(201, b"mine")
            case "kill":
                flow.kill()
            case "intercept":
                flow.intercept()
                loop.call_later(0.05, flow.resume)
            case "intercept, kill":
                flow.intercept()
                loop.call_later(0.05, lambda: (flow.resume(), flow.kill()))  # killed only, it would wait for ever
            case "change the request":
                flow.request.headers["x-changed"] = "1"
                flow.request.text = flow.request.text.replace("hello", "good evening")
            case "change the answer":
                flow.response.headers["x-changed"] = "1"
                if hook == "response":
                    flow.response.content = b"changed"
            case "set":
                self.error = self.response = lambda flow: note("does", "response of its own", flow)
                later.response = lambda flow: note("later", "response", flow)
                later.update = lambda flows: note("later", "update", flows[0])
            case "unset":
                del self.error, self.response, later.response, later.update
            case "no function":
                later.response = "no function"
            case "a function":
                del later.response
            case "add":
                ctx.master.addons.add(self.guest)
            case "remove":
                ctx.master.addons.remove(self.guest)
            case "nest":
                later.addons = [self.guest]
            case "unnest":
                del later.addons
            case "mitmproxy's own":
                ctx.master.addons.get("proxyauth").response = lambda flow: note("proxyauth", "response", flow)
            case "mitmproxy's own again":
                del ctx.master.addons.get("proxyauth").response
            case "coroutine":
                later.response = lambda flow: asyncio.sleep(0.01)
        return what


class Later:
    """Has no hooks, until it is given some."""

    name = "later"


class Outside(SeesUpdates):
    """In the chain itself, not in a script."""


does, later = Does(), Later()
addons = [Sees("before"), does, later, Sees("after")]


def running():
    ctx.master.addons.add(Outside("outside"))


def done():
    write("done")
