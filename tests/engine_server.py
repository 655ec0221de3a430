"""A real Valkey or Redis server for tests: on loopback, alone in a folder of its own, and ended by its own id.

Without one on this machine its tests are skipped with a line; HIVEMIND_REQUIRE_ENGINE=1 makes its absence a failure.
"""

import os
import random
import shutil
import socket
import subprocess
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from threading import Event

import pytest

_READY_S = 60
_LOOK_EVERY_S = 0.01
_pause = Event().wait  # nobody sets it


class EngineServer:
    """One server; not running until `start()`. `url` stays the same over restarts. For tests in one process."""

    def __init__(self, *options: str, persists: bool = False) -> None:
        """`options`: further words for its command line. `persists`: each write is on disk before it is answered."""
        self._command = server_command()
        self._options = options
        self._persists = persists
        # Short, for the path of a socket.
        self._folder = Path(tempfile.mkdtemp(prefix="hivemind-engine-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    def __repr__(self) -> str:
        return f"<EngineServer {self.url}, {f'process {self._process.pid}' if self.runs else 'not running'}>"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace") if (self._folder / "log").exists() else ""

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process, "it was not started"
        return self._process.pid

    def start(self) -> "EngineServer":
        """Blocks until it answers."""
        assert not self.runs
        words = [
            *(self._command, "--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", str(self._socket)),
            *("--dir", str(self._folder), "--logfile", "log", "--daemonize", "no", "--save", ""),
            *(("--appendonly", "yes", "--appendfsync", "always") if self._persists else ("--appendonly", "no")),
            *self._options,
        ]
        # A Ctrl-C is for the tests, which end it themselves.
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        for _ in range(round(_READY_S / _LOOK_EVERY_S)):
            assert self._process.poll() is None, f"{self._command} has ended: {self.log}"
            with suppress(OSError):
                # Where a password is wanted, that is an answer, too.
                if self.send("PING").startswith((b"+PONG", b"-NOAUTH")):
                    return self
            _pause(_LOOK_EVERY_S)
        self.kill()
        raise AssertionError(f"{self._command} does not answer: {self.log}")

    def stop(self) -> None:
        """End it in order, for good; its folder goes, too."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_READY_S)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """As kill -9 does; what is not on disk is lost. `start()` or `restart()` go on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket.unlink(missing_ok=True)

    def restart(self, *, empty: bool = True) -> None:
        """Kill it and start it at the same address, knowing nothing, or (`persists`) what it had written."""
        assert empty or self._persists, "it keeps nothing: EngineServer(persists=True)"
        self.kill()
        if empty:
            shutil.rmtree(self._folder)
            self._folder.mkdir(mode=0o700)
        self.start()

    def send(self, line: str) -> bytes:
        """The beginning of what it answers to a line, such as FLUSHALL. Raises OSError."""
        with closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(_READY_S)
            connection.connect(str(self._socket))
            connection.sendall(line.encode() + b"\r\n")
            return connection.recv(65536)

    @property
    def _socket(self) -> Path:
        return self._folder / "socket"


def server_command() -> str:
    """Skips the test where there is none."""
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        missing = "no valkey-server and no redis-server on this machine (apt-get install redis-server)"
        if os.environ.get("HIVEMIND_REQUIRE_ENGINE") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def _free_port() -> int:
    """Below those that the system hands out, so that it is still free after a restart."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 200):
        with closing(socket.socket()) as one:
            # As the server binds: what its last run left behind is in nobody's way.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                return port
    raise AssertionError("no port is free")


@pytest.fixture(scope="session")
def engine_server():
    """One server for all tests of a worker; use `engine`, which is empty for each."""
    server = EngineServer()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def engine(engine_server):
    """The server, running and empty. Who stops it for good takes an EngineServer of his own."""
    if not engine_server.runs:
        engine_server.kill()
        engine_server.start()
    assert engine_server.send("FLUSHALL").startswith(b"+OK")
    return engine_server
