import asyncio
import json
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from hivemind_addon.plugins.fleets.tasks import runner_socket
from hivemind_addon.plugins.fleets.tasks.model import NotTaken
from hivemind_addon.plugins.fleets.tasks.runner_socket import CancelTask, RunnerAnswer, RunnerSocket, WaitForTasks
from tests.cases import each
from tests.plugins.fleets.tasks.plain import short_folder


def _takes(connections):
    """Whether the system lets so many wait at a socket."""
    most = Path("/proc/sys/net/core/somaxconn")
    return most.exists() and int(most.read_text()) >= connections


@pytest.fixture
async def serving():
    """It says what it is asked, refuses to cancel, and never answers a wait."""
    told = []

    async def answer(question):
        told.append(question)
        match question:
            case CancelTask():
                raise NotTaken("not that one")
            case WaitForTasks():
                try:
                    await asyncio.Event().wait()
                finally:
                    told.append("gone")
        return RunnerAnswer(ids=("night/a",))

    with short_folder() as folder:
        made = RunnerSocket(folder / "r.sock", answer=answer, left=lambda: told.append("left"))
        made.told = told
        await made.open()
        yield made
        await made.close()
        assert not (folder / "r.sock").exists()


async def becomes(condition):
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.to_thread(lambda: None)


async def ask(at, line):
    reader, writer = await asyncio.open_unix_connection(at.path)
    writer.write(line)
    answer = await reader.read()
    writer.close()
    return json.loads(answer)


async def test_a_question_has_its_answer(serving):
    assert await ask(serving, b'{"type": "submit", "specs": [{"command": ["make"]}]}\n') == {"ids": ["night/a"]}
    assert serving.told[0].specs[0].command == ("make",)
    assert serving.path.stat().st_mode & 0o777 == 0o600


@each(
    ("line", "says"),
    [
        (b'{"type": "cancel", "id": "a"}\n', "not that one"),
        (b'{"type": "fly"}\n', "not understood"),
        (b'{"type": "submit", "specs": [{"comand": 1}]}\n', "not understood"),
        (b"\xff\xfe\n", "not understood"),
        (b"\n", "not understood"),
    ],
)
async def test_what_cannot_be_is_refused_in_one_line(serving, line, says):
    assert says in (await ask(serving, line))["refused"]


async def test_whoever_goes_waits_no_more(serving):
    _, writer = await asyncio.open_unix_connection(serving.path)
    writer.write(b'{"type": "wait", "ids": ["night/a"]}\n')
    await becomes(lambda: serving.told)
    assert serving.asking == 1
    writer.close()
    await becomes(lambda: "left" in serving.told)
    await becomes(lambda: "gone" in serving.told)
    assert serving.asking == 0


async def test_too_many_at_once_are_told(serving, monkeypatch):
    monkeypatch.setattr(runner_socket, "_MAX_ASKING", 0)
    assert "0 ask already" in (await ask(serving, b'{"type": "cancel", "id": "a"}\n'))["refused"]


@pytest.mark.skipif(not _takes(200), reason="the system lets fewer wait")
async def test_a_crowd_that_comes_at_once_waits_at_the_socket(serving):
    with ExitStack() as crowd:
        for _ in range(200):  # nothing is awaited here: it is too busy to let anybody in
            one = crowd.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            one.connect(os.fspath(serving.path))
    assert await ask(serving, b'{"type": "submit", "specs": [{"command": ["make"]}]}\n') == {"ids": ["night/a"]}
