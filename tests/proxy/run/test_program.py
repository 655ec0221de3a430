"""What runs in the process of `hivemind run`'s proxy, and what that process does without."""

import asyncio
import gc
import subprocess
import sys
from io import BytesIO, TextIOWrapper

import pytest
from mitmproxy.tools import main as programs

from hivemind_addon.proxy.run import program
from tests.cases import each

UNUSED = {"httpx", "mcp", "opentelemetry", "rich", "textual", "tiktoken", "tomlkit"}
"""What a proxy loads at need, or never."""


@each(("loop", "taken"), [("asyncio", "asyncio"), ("uvloop", "uvloop"), ("auto", "uvloop")])
def test_it_is_the_program_with_its_arguments_on_the_loop_that_was_asked_for(monkeypatch, loop, taken):
    pytest.importorskip(taken)
    seen, log = [], BytesIO()

    def mitmweb():
        print("a line")
        seen.append((sys.argv, gc.isenabled(), asyncio.run(what_runs()), log.getvalue()))
        return 3

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run", asyncio.run)
        patched.setattr(gc, "freeze", lambda: None)  # this process goes on
        patched.setattr(programs, "mitmweb", mitmweb)
        patched.setattr(sys, "argv", ["program.py", loop, "mitmweb", "-q", "--mode", "regular"])
        patched.setattr(sys, "stdout", TextIOWrapper(log))
        assert program.main() == 3
    assert seen == [(["mitmweb", "-q", "--mode", "regular"], True, taken, b"a line\n")]


async def what_runs():
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@each(
    ("missing", "told"),
    [
        (ModuleNotFoundError("No module named 'uvloop'"), ""),
        (ImportError("no libuv"), "hivemind: uvloop does not load, so the proxy runs on asyncio: no libuv\n"),
    ],
)
def test_without_uvloop_auto_is_asyncio_and_only_a_broken_one_is_news(monkeypatch, capsys, missing, told):
    def fail(name):
        raise missing

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run", asyncio.run)
        patched.setattr(program, "import_module", fail)
        program.take_loop("auto")
        assert asyncio.run(what_runs()) == "asyncio"
        assert capsys.readouterr().err == told
        with pytest.raises(ImportError, match=str(missing)):
            program.take_loop("uvloop")


def test_the_addon_loads_nothing_that_only_few_need():
    lister = "import sys, hivemind_addon.proxy.gate.addon; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", lister], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.split())
    assert {name.partition(".")[0] for name in loaded} & UNUSED == set()
    assert {"hivemind_addon.tools", "lab", "hivemind_addon.plugins.captures.recorder"} & loaded == set()
