"""A second script beside hivemind_addon in the tests' mitmdump: shows what goes on inside, and breaks things on demand.

Requests to http://probe.test/ are answered by it:

    /state              the scheduler's snapshot, the open exchanges, the layer's streams, the hooks that fired, as JSON
    /trip?where=NAME    from now on the named function raises (`off` ends it)
    /ended?account=NAME    how its tickets ended, oldest first: end, reason, attempts, ambiguous resends, id
    /misroute?at=ADDRESS:PORT&to=ADDRESS:PORT&times=N    the next N upstream connections to the one go to the other
    /option?name=NAME   the value of one of mitmproxy's options
    /set?option=NAME=VALUE    set one while it runs: `ok`, or why not
    /known              the `x-test-id` of all flows so far
    /flow?name=TEST_ID    what became of the flow whose request said `x-test-id`
    /release?name=TEST_ID    resume that flow, which a person intercepted
    /replay?name=TEST_ID  replay that flow
    /leftovers            what only the collector frees

Every name below leads-here.test is this machine's loopback.
"""

import gc
import importlib
import json
import socket
import sys
from collections import Counter
from urllib.parse import parse_qs, urlparse

import msgspec
from mitmproxy import ctx, exceptions, http
from mitmproxy.tls import TlsData

TRIPPABLE = {
    # Step 1
    "next_layer": ("hivemind_addon.proxy.host.http_layer", None, "scheduling_layer"),
    "own_headers": ("hivemind_addon.proxy.gate.intake", "Intake", "take_own_headers"),
    "claims": ("hivemind_addon.proxy.gate.claims", "Claims", "profile_for"),
    "hooks": ("hivemind_addon.proxy.host.hooks", "DirectAddonManager", "of_flow"),
    # Step 2
    "intake": ("hivemind_addon.proxy.gate.intake", "Intake", "make"),
    "request": ("hivemind_addon.formats.wire.request", None, "read_request"),
    "identify": ("hivemind_addon.formats.wire.identity", None, "identify"),
    "estimate": ("hivemind_addon.formats.wire.estimate", "Estimator", "estimate"),
    "fingerprints": ("hivemind_addon.formats.wire.request", None, "fingerprints"),
    "call_kind": ("hivemind_addon.formats.wire.identity", None, "call_kind"),
    "agents": ("hivemind_addon.proxy.gate.settings", "AgentsFile", "rules"),
    "account": ("hivemind_addon.proxy.run.driver", "Driver", "account_of"),
    # Step 3
    "gate": ("hivemind_addon.proxy.host.stream", "ScheduledStream", "_hold"),
    "hold": ("hivemind_addon.proxy.gate.exchange", "Exchange", "_wait"),
    # Step 4
    "submit": ("hivemind_addon.kernel.scheduler", "Scheduler", "submit"),
    "poll": ("hivemind_addon.kernel.scheduler", "Scheduler", "poll"),
    "decision": ("hivemind_addon.proxy.run.driver", "Driver", "decision"),
    # Step 5
    "take": ("hivemind_addon.proxy.gate.exchange", "Exchange", "_take"),
    "refusal": ("hivemind_addon.proxy.gate.refusal", None, "make_refusal"),
    "budget_refusal": ("hivemind_addon.proxy.gate.refusal", None, "make_refused"),
    # Step 6
    "alarms": ("hivemind_addon.proxy.gate.exchange", "Exchange", "_alarms"),
    "silence": ("hivemind_addon.formats.wire.watchdog", "Durations", "p99_s"),
    "first_bytes": ("hivemind_addon.formats.wire.watchdog", "Durations", "note"),
    "wait_for_head": ("hivemind_addon.proxy.host.stream", "ScheduledStream", "state_wait_for_response_headers"),
    "head": ("hivemind_addon.formats.wire.hints", None, "read_hints"),
    "observe": ("hivemind_addon.kernel.scheduler", "Scheduler", "observe"),
    # Step 7
    "collect": ("hivemind_addon.proxy.host.stream", "ScheduledStream", "_end_collecting"),
    "peek": ("hivemind_addon.proxy.host.stream", "ScheduledStream", "state_peek"),
    "judge": ("hivemind_addon.formats.wire.outcome", None, "judge_answer"),
    "judge_transport": ("hivemind_addon.formats.wire.outcome", None, "judge_transport"),
    "judge_stream": ("hivemind_addon.formats.wire.outcome", None, "judge_stream_error"),
    "retry": ("hivemind_addon.proxy.host.stream", "ScheduledStream", "_retry"),
    # Step 8
    "release": ("hivemind_addon.proxy.host.stream", "ScheduledStream", "_release"),
    "stream": ("hivemind_addon.proxy.host.stream", "ScheduledStream", "state_stream"),
    "tee": ("hivemind_addon.formats.wire.answer", "AnswerReader", "feed"),
    "layer": ("hivemind_addon.proxy.host.stream", "ScheduledStream", "_deliver"),
    # Step 9
    "finish": ("hivemind_addon.formats.wire.answer_in_progress", "AnswerInProgress", "finish"),
    "usage": ("hivemind_addon.formats.wire.answer", "AnswerReader", "usage"),
    "charged": ("hivemind_addon.formats.wire.estimate", "Estimator", "charged"),
    "settle": ("hivemind_addon.kernel.scheduler", "Scheduler", "settle"),
    "client_gone": ("hivemind_addon.proxy.gate.proxy", "Proxy", "client_disconnected"),
    # Step 10
    "observer": ("hivemind_addon.proxy.record.buffer", "EventBuffer", "__call__"),
    "journal": ("hivemind_addon.proxy.journal.rows", "Rows", "take"),
}


class Boom(Exception):
    """What the tripped functions raise."""


def _boom(*_args, **_kwargs):
    raise Boom("injected by the test")


def _is_request(thing):
    """Whether it is a stream of ours; a CONNECT's lives as long as its client's connection."""
    if type(thing).__name__ != "ScheduledStream":
        return False
    flow = getattr(thing, "flow", None)
    return flow is None or flow.request.method != "CONNECT"


class Probe:
    def __init__(self):
        self.hooks = Counter()
        self.flows = {}
        self.undo = []
        self.misroutes = {}
        self.events = []

    def load(self, loader):
        """Be the machine's resolver."""
        resolve = socket.getaddrinfo

        def lead_here(host, *arguments, **settings):
            name = host.decode() if isinstance(host, bytes) else host
            here = name and name.endswith(".leads-here.test")
            return resolve("127.0.0.1" if here else host, *arguments, **settings)

        socket.getaddrinfo = lead_here

    def running(self):
        ctx.master.addons.get("hivemind").proxy.driver.listen(self.events.append)

    # What it sees

    def _count(self, hook, flow):
        self.hooks[f"{hook} {flow.request.headers.get('x-test-id', '-')}"] += 1

    def requestheaders(self, flow: http.HTTPFlow):
        if name := flow.request.headers.get("x-test-id"):
            self.flows[name] = flow
        self._count("requestheaders", flow)

    def responseheaders(self, flow: http.HTTPFlow):
        self._count("responseheaders", flow)

    def response(self, flow: http.HTTPFlow):
        self._count("response", flow)

    def error(self, flow: http.HTTPFlow):
        self._count("error", flow)

    def tls_start_server(self, data: TlsData):
        """An h1 client has h2 upstream where the test's host says so; mitmproxy would mirror the client's protocol."""
        if (data.conn.sni or "").startswith("h2."):
            data.conn.alpn_offers = (b"h2", b"http/1.1")

    def server_connect(self, data):
        address = f"{data.server.address[0]}:{data.server.address[1]}"
        to, times = self.misroutes.pop(address, ("", 0))
        if times > 1:
            self.misroutes[address] = (to, times - 1)
        if times:
            host, _, port = to.rpartition(":")
            data.server.address = (host, int(port))

    # What it answers

    def request(self, flow: http.HTTPFlow):
        self._count("request", flow)
        if appended := flow.request.headers.pop("x-test-append", None):
            flow.request.text += appended
        if answer := flow.request.headers.pop("x-test-answer", None):
            flow.response = http.Response.make(int(answer), b"{}", {"content-type": "application/json"})
        if flow.request.host != "probe.test":
            return
        url = urlparse(flow.request.path)
        arguments = {name: values[0] for name, values in parse_qs(url.query).items()}
        answer = getattr(self, url.path.strip("/"))(**arguments)
        flow.response = http.Response.make(200, json.dumps(answer), {"content-type": "application/json"})

    def state(self):
        proxy = ctx.master.addons.get("hivemind").proxy
        gc.collect()
        things = gc.get_objects()
        layers = [thing for thing in things if type(thing).__name__ == "SchedulingHttpLayer"]
        snapshot = msgspec.to_builtins(proxy.driver.snapshot())
        for pool in snapshot["pools"]:
            pool["key"] = "/".join(pool["key"].values())
        return {
            "snapshot": snapshot,
            "guard_trips": proxy.guard.trips,
            "live": len(proxy.live),
            "streams": sum(_is_request(thing) for thing in things),
            "layer_streams": sum(_is_request(stream) for layer in layers for stream in layer.streams.values()),
            "connections": sum(len(layer.connections) for layer in layers),
            "hooks": dict(self.hooks),
            "tokenizer": repr(proxy.runtime.tokenizer),
            "events": [f"{type(event).__name__} {event}" for event in list(self.events)[-200:]],
        }

    def leftovers(self, then="collect"):
        """What only the collector frees, by type, since it was asked last; `then="leave"`: nobody else collects meanwhile."""
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        found = Counter(type(thing).__name__ for thing in gc.garbage)
        gc.garbage.clear()
        gc.collect()
        if then == "leave":
            gc.disable()
        else:
            gc.enable()
        return dict(found)

    def ended(self, account):
        ends = [
            event for event in self.events if type(event).__name__ == "TicketEnded" and event.pool.account == account
        ]
        return [(one.end, one.reason, one.attempts, one.ambiguous_resends, one.ticket_id) for one in ends]

    def misroute(self, at, to, times):
        self.misroutes[at] = (to, int(times))
        return at

    def trip(self, where):
        while self.undo:
            setattr(*self.undo.pop())
        if where != "off":
            module_name, class_name, name = TRIPPABLE[where]
            owner = importlib.import_module(module_name)
            owners = [getattr(owner, class_name)] if class_name else [owner]
            if not class_name:  # a function is known by name to the modules that imported it, too
                function = getattr(owner, name)
                ours = [module for known, module in sys.modules.items() if known.startswith("hivemind_addon.")]
                owners = [module for module in ours if getattr(module, name, None) is function]
            for one in owners:
                self.undo.append((one, name, getattr(one, name)))
                setattr(one, name, _boom)
        return where

    def option(self, name):
        return getattr(ctx.options, name)

    def set(self, option):
        try:
            ctx.options.set(option)
        except exceptions.OptionsError as error:
            return str(error)
        return "ok"

    def flow(self, name):
        flow = self.flows[name]
        response = flow.response
        return {
            "status": response and response.status_code,
            "content": response and (response.raw_content or b"").decode(errors="replace"),
            "error": flow.error and flow.error.msg,
            "intercepted": flow.intercepted,
        }

    def known(self):
        return list(self.flows)

    def release(self, name):
        self.flows[name].resume()
        return "ok"

    def replay(self, name):
        ctx.master.commands.call("replay.client", [self.flows[name]])
        return "ok"


addons = [Probe()]
