"""A user's machine in a folder: home, state, sockets, and a mitmproxy configuration that leads to a simulated provider."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hivemind_addon.proxy.api.control import read_report
from hivemind_addon.tools.launch.programs import load_programs
from tests.e2e.proxy import PATIENCE_S, free_port


class Machine:
    """Where `hivemind` commands run."""

    def __init__(self, home, port, provider, authority):
        self.home = home
        self.port = port
        self.state = home / "state" / "hivemind_addon"
        ours = set(load_programs().ca_variables)
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ours and not name.lower().endswith("_proxy")
        }
        self.environment = kept | {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_RUNTIME_DIR": str(home),
            "PYTHONUNBUFFERED": "1",
        }
        confdir = home / ".mitmproxy"
        confdir.mkdir()
        authority.cert_pem.write_to_path(str(home / "upstream.pem"))
        self.configure(
            hivemind_redirect=[f"api.anthropic.com=127.0.0.1:{provider.port}"],
            ssl_verify_upstream_trusted_ca=str(home / "upstream.pem"),
        )

    def configure(self, **options):
        """Write mitmproxy's configuration anew."""
        (self.home / ".mitmproxy" / "config.yaml").write_text(json.dumps(options))

    def hivemind(self, command, *arguments):
        """The command line; it is to be found from anywhere, so it is run from the home folder."""
        return [sys.executable, "-P", "-m", "hivemind_addon", command, "-p", str(self.port), *map(str, arguments)]

    def run(self, command, *arguments, **environment):
        return subprocess.run(
            self.hivemind(command, *arguments),
            capture_output=True,
            text=True,
            cwd=self.home,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=False,
        )

    @contextmanager
    def started(self, command, *arguments, **environment):
        """One that goes on; ended by its own process id, whatever happens."""
        process = subprocess.Popen(
            self.hivemind(command, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.home,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.stdout.close()
            process.wait(PATIENCE_S)

    def report(self):
        """What `hivemind status --json` says, without a process for it; None: no proxy."""
        told = read_report(self.home / "hivemind" / f"{self.port}.sock", timeout_s=PATIENCE_S)
        return told and json.loads(msgspec.json.encode(told))

    def wait_for(self, condition, what):
        """Other processes have the real clock: ask until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not (answer := condition()):
            assert time.monotonic() < deadline, f"{what} did not happen"
            time.sleep(0.02)
        return answer

    def model_call(self, *more):
        """curl's command line for one call; the key is the agent's."""
        body = {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}
        headers = ("x-api-key: sk-1", "anthropic-version: 2023-06-01", "content-type: application/json")
        return [
            *(
                "curl",
                "-sS",
                "--max-time",
                str(PATIENCE_S),
                "https://api.anthropic.com/v1/messages",
                "-d",
                json.dumps(body),
            ),
            *(word for header in headers for word in ("-H", header)),
            *more,
        ]


@contextmanager
def machine(provider, authority):
    """A short path: sockets' names may not be long."""
    home = Path(tempfile.mkdtemp(prefix="hm"))
    try:
        yield Machine(home, free_port(), provider, authority)
    finally:
        shutil.rmtree(home, ignore_errors=True)  # a proxy that its last agent has left may be ending in it
