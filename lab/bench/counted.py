"""A script in a proxy: counts what its event loop does, for `bench.calls`. It has no hook for requests.

Who connects to its port says in lines, each answered by one of JSON:

    begin      count from now on
    end        count no more
    read       what was counted so far: numbers by name
    top        calls of each of our functions so far
    steps      instructions of the interpreter in each function so far
    origins    who made tasks, futures, timers and callbacks, and whose hooks were called
    listeners  how many addons have each hook of a request
    collect    the objects that only the cycle collector frees, by type; it does not run by itself from the first one on
    write      the conversations that the addon holds until their sessions are silent

A thread of its own answers, so that questions are not counted.
"""

import asyncio
import gc
import json
import socketserver
import sys
import threading
from collections import Counter
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType

import mitmproxy
from counters import write_held  # from beside this script, as mitmproxy has it
from mitmproxy import ctx, hooks
from mitmproxy.addonmanager import AddonManager, traverse
from mitmproxy.addons.asgiapp import ASGIApp

import hivemind_addon

_OURS = str(Path(hivemind_addon.__file__).parent)
_HOST = str(Path(mitmproxy.__file__).parent)
_LOOP = str(Path(asyncio.__file__).parent)
"""The others lie in `proxy` and are told apart there."""
_TOOL = sys.monitoring.PROFILER_ID
_EVENTS = sys.monitoring.events
_PYTHON = (FunctionType, MethodType)
_HOOKS = ("requestheaders", "request", "responseheaders", "response")
"""Of a request that goes well."""
_WRITES = ("send", "sendmsg", "sendto")
_PASSED_ON = (
    "factory",
    "sleep",
    "create_task",
    "create_future",
    "call_later",
    "call_soon",
    "ensure_future",
    "wait_for",
)
"""Functions of asyncio that make what their caller wants."""
_READS = ("recv", "recv_into", "recvfrom")


class Counting:
    """Callbacks of the interpreter, for the event loop's thread only."""

    def __init__(self):
        self.counts = Counter()
        self.functions = Counter()
        self.steps = Counter()
        """Instructions by code."""
        self.origins = Counter()
        """Of tasks, futures, timers and callbacks: who made them; of hooks: whose."""
        self.codes = {}
        """What the start of each piece of code is counted as."""
        self.makers = {}
        """The same for the call of each class."""
        self.loop = None
        self.thread = 0
        self.ports = set()
        """Where clients connect to."""
        self.answering = set()
        """Our own threads."""

    def begin(self):
        self.thread = threading.main_thread().ident
        self.ports = {address[1] for address in ctx.master.addons.get("proxyserver").listen_addrs()}
        self.codes |= self._watched()
        sys.monitoring.use_tool_id(_TOOL, "lab.bench.calls")
        for event, callback in (
            (_EVENTS.PY_START, self.started),
            (_EVENTS.PY_RESUME, self.resumed),
            (_EVENTS.PY_THROW, self.resumed),
            (_EVENTS.CALL, self.called),
            (_EVENTS.INSTRUCTION, self.stepped),
        ):
            sys.monitoring.register_callback(_TOOL, event, callback)
        calls = _EVENTS.PY_START | _EVENTS.PY_RESUME | _EVENTS.PY_THROW | _EVENTS.CALL
        sys.monitoring.set_events(_TOOL, calls | _EVENTS.INSTRUCTION)

    def end(self):
        sys.monitoring.set_events(_TOOL, 0)
        sys.monitoring.free_tool_id(_TOOL)

    def _watched(self):
        """Code whose start means something."""
        base = asyncio.base_events.BaseEventLoop
        watched = {
            base.call_at.__code__: "timers",
            base.call_soon.__code__: "callbacks",
            base._run_once.__code__: "turns of the loop",  # noqa: SLF001 - counted, not used
            AddonManager.invoke_addon.__code__: "addons asked",
            AddonManager.invoke_addon_sync.__code__: "addons asked",
        }
        for addon in traverse(ctx.master.addons.chain):
            for hook in hooks.all_hooks:
                # An app is asked whether a request is its own: as much of a call as there is for others.
                method = "should_serve" if hook == "request" and isinstance(addon, ASGIApp) else hook
                function = getattr(getattr(addon, method, None), "__func__", None) or getattr(addon, method, None)
                if isinstance(function, FunctionType):
                    watched[function.__code__] = "hooks called"
        return watched

    def started(self, code, _offset):
        if (thread := threading.get_ident()) != self.thread:
            self.counts["calls in other threads"] += thread not in self.answering
            return
        self.entered(code)
        name = self.codes.get(code)
        if name:
            self.counts[name] += 1
            caller = sys._getframe(1).f_back  # noqa: SLF001 - the only way to the caller
            while caller.f_code.co_name in _PASSED_ON:
                caller = caller.f_back
            self.origins[f"{name}: {code.co_qualname if name == 'hooks called' else _place(caller.f_code)}"] += 1

    def stepped(self, code, _offset):
        if threading.get_ident() == self.thread:
            self.counts["instructions"] += 1
            self.steps[code] += 1
        else:
            self.counts["instructions in other threads"] += 1

    def resumed(self, code, _offset, _error=None):
        if threading.get_ident() == self.thread:
            self.entered(code)

    def entered(self, code):
        where = code.co_filename
        self.counts["Python calls"] += 1
        self.counts[_package(where)] += 1
        if where.startswith(_OURS):
            self.functions[_place(code)] += 1

    def called(self, _code, _offset, function, first):
        if threading.get_ident() != self.thread:
            return
        counts = self.counts
        if isinstance(function, type):
            counts["objects made by a class"] += 1
            name = self.makers.get(function)
            if name is None:
                name = self.makers[function] = _made(function)
            if name:
                counts[name] += 1
                caller = sys._getframe(1)  # noqa: SLF001 - the only way to the caller
                while caller.f_code.co_name in _PASSED_ON:
                    caller = caller.f_back
                self.origins[f"{name}: {_place(caller.f_code)}"] += 1
            return
        if isinstance(function, _PYTHON):
            return
        counts["C calls"] += 1
        name = getattr(function, "__name__", "")
        if name in _WRITES or name in _READS:
            bound = function.__self__ if isinstance(function, BuiltinFunctionType) else first
            if hasattr(bound, "getsockname"):
                counts[f"{'writes' if name in _WRITES else 'reads'}, {self._side(bound)}"] += 1

    def steps_by_place(self):
        places = Counter()
        for code, steps in self.steps.copy().items():
            places[_place(code)] += steps
        return places

    def _side(self, sock):
        try:
            port = sock.getsockname()[1]
            sock.getpeername()[1]
        except (OSError, IndexError, TypeError):
            return "loop itself"
        return "client" if port in self.ports else "provider"


def _made(kind):
    if issubclass(kind, asyncio.Task):
        return "tasks"
    return "futures" if issubclass(kind, asyncio.Future) else ""


def _place(code):
    """Where a function is, shortly."""
    file = code.co_filename
    for folder in (_OURS, _HOST, _LOOP):
        file = file.removeprefix(f"{folder}/")
    return f"{file}:{code.co_firstlineno} {code.co_qualname}"


_packages = {}


def _package(file):
    name = _packages.get(file)
    if name is None:
        name = _packages[file] = f"calls of {_package_of(file)}"
    return name


def _package_of(file):
    if file.startswith(_OURS):
        parts = Path(file[len(_OURS) + 1 :]).parts
        return "/".join(parts[:2] if parts[0] == "proxy" and len(parts) > 2 else parts[:1])
    if file.startswith(_HOST):
        return "mitmproxy"
    return "asyncio" if file.startswith(_LOOP) else "others"


def listeners():
    """By hook."""
    addons = list(traverse(ctx.master.addons.chain))
    return {hook: sum(callable(getattr(addon, hook, None)) for addon in addons) for hook in _HOOKS}


def collected():
    """What the collector finds, by type; from now on it runs only when it is asked."""
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage)
    gc.garbage.clear()
    gc.collect()
    return kinds


class Answering(socketserver.StreamRequestHandler):
    def handle(self):
        counting.answering.add(threading.get_ident())
        for line in self.rfile:
            match line.decode().strip():
                case "begin":
                    counting.begin()
                    told = {}
                case "end":
                    counting.end()
                    told = {}
                case "read":
                    told = dict(counting.counts)
                case "top":
                    told = dict(counting.functions)
                case "steps":
                    told = counting.steps_by_place()
                case "origins":
                    told = dict(counting.origins)
                case "listeners":
                    told = listeners()
                case "collect":
                    told = collected()
                case "write":
                    asyncio.run_coroutine_threadsafe(write_held(), counting.loop).result()
                    told = {}
                case other:
                    raise ValueError(other)
            self.wfile.write(json.dumps(told).encode() + b"\n")


class Script:
    def load(self, loader):
        loader.add_option("bench_counters_port", int, 0, "Where the counts are told.")

    def running(self):
        counting.loop = asyncio.get_running_loop()
        server = socketserver.ThreadingTCPServer(("127.0.0.1", ctx.options.bench_counters_port), Answering)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        counting.answering.add(thread.ident)


counting = Counting()
addons = [Script()]
