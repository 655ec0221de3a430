"""What users wait for besides requests: a proxy's start, and the commands; and what an idle proxy weighs."""

import json
import select
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import perf_counter

from hivemind_addon.formats.base.resources import script_path
from lab.bench.stack import MEASURABLE, cpu_s, free_port, rss_bytes
from lab.bench.watched import fetch

_BIN = Path(sys.executable).parent
_START_S = 60
_SETTLED_S = 1.5
"""What a start still loads by itself after it listens."""


@dataclass(frozen=True)
class Started:
    """A kind of proxy; medians."""

    name: str
    listening_s: float
    cpu_s: float
    """Of processor time until then."""
    idle_bytes: float
    """Of the process that listens, settled; 0: not known."""


@dataclass(frozen=True)
class Command:
    name: str
    wall_s: float
    cpu_s: float


def starts(stack, count):
    """Bare mitmdump, the addon in it, and `hivemind run`, in turns: from the start to the first answer."""
    kinds = {
        "mitmdump": lambda port, confdir: (_BIN / "mitmdump", "-p", port, "--set", f"confdir={confdir}"),
        "mitmdump -s": lambda port, confdir: (
            *(_BIN / "mitmdump", "-s", script_path(), "-p", port),
            *("--set", f"confdir={confdir}"),
        ),
        "hivemind run": lambda port, confdir: (_BIN / "hivemind", "run", "-p", port, "--set", f"confdir={confdir}"),
    }
    seen = {name: [] for name in kinds}
    for _ in range(count):
        for name, command in kinds.items():
            seen[name].append(_start(stack, command(free_port(), stack.folder / "mitmproxy")))
    return [Started(name, *(median(column) for column in zip(*samples, strict=True))) for name, samples in seen.items()]


def _start(stack, command):
    began = perf_counter()
    port = int(command[command.index("-p") + 1])
    process = stack.spawn(*map(str, command), core=0, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not _answers(port):
        if process.poll() is not None or perf_counter() - began > _START_S:
            raise SystemExit(f"{' '.join(map(str, command))}: does not listen")
        select.select([], [], [], 0.005)
    listening_s = perf_counter() - began
    spent_s = sum(map(cpu_s, _family(process.pid)))
    select.select([], [], [], _SETTLED_S)
    weight = rss_bytes(_family(process.pid)[-1])
    process.terminate()
    process.wait()
    return listening_s, spent_s, weight


def _answers(port):
    """Whether it takes a connection; then, what it answers to a request that leads nowhere has come, too."""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=_START_S) as sock:
            sock.sendall(b"GET http://127.0.0.1:1/ HTTP/1.1\r\nhost: 127.0.0.1:1\r\n\r\n")
            return bool(sock.recv(1024))
    except ConnectionError:
        return False


def _family(pid):
    """The process, the only child, and the child of that, as far as the system reports them."""
    line = [pid]
    while MEASURABLE and (children := Path(f"/proc/{line[-1]}/task/{line[-1]}/children").read_text().split()):
        line.append(int(children[0]))
    return line


def commands(stack, proxy, count):
    """Each command against a running proxy that has seen agents; beside them what Python alone takes."""
    port = proxy.reverse_port
    agent = json.loads(fetch(proxy.forward_port, "/report.json"))["stats"]["sessions"][0]["agent"]
    calls = {
        "python -c pass": (sys.executable, "-c", "pass"),
        "hivemind status": (_BIN / "hivemind", "status", "-p", port),
        "hivemind lease list": (_BIN / "hivemind", "lease", "list"),
        "hivemind lease acquire": (_BIN / "hivemind", "lease", "acquire", "bench", "--pid", "0", "--at-most", "100"),
        "hivemind priority": (_BIN / "hivemind", "priority", agent, "normal", "-p", port),
        "hivemind eta": (_BIN / "hivemind", "eta", agent, "-p", port),
    }
    samples = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            samples[name].append(run(stack, call))
    return [Command(name, *(median(column) for column in zip(*pairs, strict=True))) for name, pairs in samples.items()]


def run(stack, call):
    """How long a command takes, and how much processor time. Raises SystemExit when it fails."""
    began, before = perf_counter(), getrusage(RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(word) for word in call],
        env=stack.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s, after = perf_counter() - began, getrusage(RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, call))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
