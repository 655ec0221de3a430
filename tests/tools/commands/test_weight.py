"""What everyday commands load: people and agents call them in loops, and nearly all their time is imports."""

import json
import subprocess
import sys

import pytest

from hivemind_addon.proxy.api.command import CommandReply
from tests.cases import each
from tests.tools.commands.served import serving
from tests.tools.dash.samples import pool, report, session, waiting

pytestmark = pytest.mark.usefixtures("folders")

HEAVY = {
    "asyncio",
    "http",
    "logging",
    "mitmproxy",
    "prometheus_client",
    "ssl",
    "subprocess",
    "textual",
    "tiktoken",
    "yaml",
}
"""Top modules that no everyday command loads."""
PLAIN = (
    *("pause", "resume", "cap 4", "priority a high", "front t1", "cancel t1", "eta a"),
    *("budget", "budget set agent a 20k", "config", "config --json", "config set hivemind_fresh true", "history"),
    *("lease acquire x --pid 0 --no-wait", "lease list --json", "lease renew 0123456789abcdef", "lease release x"),
)
"""What they print is lines."""
PICTURES = ("status", "status --json", "status agents", "status pools", "top --once")
"""They draw with rich's texts, and need its console on a terminal only."""
MOST = 230
"""Modules, with those of the interpreter's own start and a few packages' own files."""
LISTER = """
import atexit, json, sys
from hivemind_addon.tools.cli import main
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules)), file=sys.stderr))
main(sys.argv[1:], prog_name="hivemind")
"""


def loaded(command):
    done = subprocess.run(
        [sys.executable, "-c", LISTER, *command.split()], check=False, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@each("command, spared", [(one, "rich") for one in PLAIN] + [(one, "rich.console") for one in PICTURES])
def test_an_everyday_command_loads_little(command, spared):
    told = report(pool(tickets=(waiting("t1", agent="a"),)), sessions=[session("a")])
    with serving(told, answer=lambda _: CommandReply(done=True, text="done", value=[])):
        modules = loaded(command)
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()
    assert {spared, "hivemind_addon.kernel.pool"} & modules == set()
    assert len(modules) <= MOST, sorted(modules)
