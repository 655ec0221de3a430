"""One try of a task as a process: started under its supervisor, its words kept, ended when it has to be."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from hivemind_addon.plugins.fleets.tasks import supervisor

MAX_LOG_BYTES = 64 * 1024 * 1024
"""Of one task; what it says beyond that is not kept."""
TAIL_BYTES = 8 * 1024
_CHUNK = 64 * 1024
_ROUNDS = 20
_DRAIN_S = 5.0
"""For the last words of a dead task: a process that it has left may hold the pipe."""


class TaskNotStarted(Exception):
    """One line that says why."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a try ended."""

    exit_status: int
    """As shells have it: 128 and the signal's number."""
    was_ended: bool
    """By us."""
    timed_out: bool
    result: str
    """The end of its standard output."""
    last_words: str
    """The end of all it said."""


class TaskProcess:
    """A running try. On one event loop; `wait` has to be called."""

    def __init__(self, process: Process, *, out: "_Pipe", errors: "_Pipe", log: IO[bytes], result: IO[bytes]) -> None:
        self._process = process
        self._out = out
        self._errors = errors
        self._log = _BoundedFile(log)
        self._result = _BoundedFile(result)
        self._was_ended = False

    def __repr__(self) -> str:
        return f"<TaskProcess {self._process.pid}>"

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self._process.pid

    def end(self) -> None:
        """Ask it to end; five seconds later it is killed. `wait` tells when it is over."""
        self._was_ended = True
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End it now: the kernel kills the task with its supervisor, and `wait` what both have left."""
        self._was_ended = True
        with suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self, *, timeout_s: float | None) -> ProcessEnd:
        """Until it is over, and nothing that it started is left."""
        reading = asyncio.gather(
            _copy(self._out.stream, (self._log, self._result)), _copy(self._errors.stream, (self._log,))
        )
        timed_out = False
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    status = await self._process.wait()
            except TimeoutError:
                timed_out = True
                self.end()
                status = await self._process.wait()
            if status < 0:
                # The supervisor itself was killed: the kernel has killed the task, and we what is in their session.
                end_session(self._process.pid)
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await reading
        finally:
            reading.cancel()
            self._out.transport.close()
            self._errors.transport.close()
            self._log.close()
            self._result.close()
        return ProcessEnd(
            exit_status=status if status >= 0 else 128 - status,
            was_ended=self._was_ended,
            timed_out=timed_out,
            result=self._result.tail(),
            last_words=self._log.tail(),
        )


async def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    log: Path,
    result: Path,
    lock: int | None = None,
) -> TaskProcess:
    """Start a try; `log` is added to, `result` begins anew. Raises TaskNotStarted.

    `lock`: the descriptor of one that is held until all that the task has started is over, though we be killed.
    """
    try:
        kept, said = _open(log, os.O_APPEND), _open(result, os.O_TRUNC)
    except OSError as error:
        raise TaskNotStarted(f"{error.filename}: {error.strerror}") from error
    # Pipes of our own: asyncio's make `wait` wait for all processes that hold them.
    out, errors = await _pipe(), await _pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", supervisor.__file__, str(-1 if lock is None else lock), *command),
            stdin=PIPE,
            stdout=out.writes,
            stderr=errors.writes,
            env=environment,
            cwd=directory,
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,  # Ctrl-C is for the runner, who ends its tasks in order
        )
    except (OSError, ValueError) as error:
        kept.close()
        said.close()
        if isinstance(error, ValueError):
            raise TaskNotStarted(f"its command or environment is none: {error}") from error
        # It is always the folder: the program that is started here is Python.
        raise TaskNotStarted(f"{error.filename or directory}: {error.strerror or error}") from error
    finally:
        os.close(out.writes)
        os.close(errors.writes)
    return TaskProcess(process, out=out, errors=errors, log=kept, result=said)


async def _pipe() -> "_Pipe":
    reads, writes = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reads, "rb", buffering=0)
    )
    return _Pipe(stream, transport, writes)


def end_session(session: int) -> None:
    """Kill every process of a session, where the system tells which these are."""
    for _ in range(_ROUNDS):  # one may be forking just now
        found = [pid for pid in Path("/proc").glob("[0-9]*") if _session_of(pid) == session]
        for process in found:
            with suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)
        if not found:
            return


def _session_of(process: Path) -> int | None:
    """None: it has ended."""
    try:
        state, _, _, session, *_ = supervisor.facts(process)
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(session)


class _Pipe(NamedTuple):
    """What a task says: where it is read, and the descriptor that it writes to."""

    stream: asyncio.StreamReader
    transport: asyncio.ReadTransport
    writes: int


class _BoundedFile:
    """A file that grows to a bound, and the end of what was written to it. A full disk is no reason to stop a task."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = MAX_LOG_BYTES - file.tell()
        self._tail = bytearray()

    def write(self, chunk: bytes) -> None:
        self._tail += chunk
        del self._tail[:-TAIL_BYTES]
        if self._left > 0:
            self._left -= len(chunk)
            with suppress(OSError):
                self._file.write(chunk)
                if self._left <= 0:
                    self._file.write(b"\nhivemind: what follows is not kept, the log is full\n")

    def tail(self) -> str:
        return bytes(self._tail).decode(errors="replace").strip()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


async def _copy(stream: asyncio.StreamReader, kept: Sequence[_BoundedFile]) -> None:
    while chunk := await stream.read(_CHUNK):
        for one in kept:
            one.write(chunk)


def _open(path: Path, how: int) -> IO[bytes]:
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600), "wb", buffering=0)
    file.seek(0, os.SEEK_END)
    return file
