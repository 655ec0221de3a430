"""What one turn of the event loop sends: one write for each connection.

mitmproxy writes each command's bytes at once, and asyncio tries to send each write at once: a head, its body and its
end would be three system calls, and wake the peer up to three times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mitmproxy.proxy import commands, layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mitmproxy.connection import Connection

MOST_JOINED_BYTES = 64 * 1024
"""More is not copied to be joined: a system call is cheaper."""


class Flush(commands.Command):
    """What the turn has sent so far is written now: somebody waits for it, and the turn goes on for a while."""


def in_one_write(turn: Iterable[commands.Command], *, then: Callable[[], None]) -> layer.CommandGenerator[None]:
    """A turn's commands, in which what goes to one connection is joined; nothing of it is passed by anything else.

    `then` is called at the turn's end.
    """
    held: dict[Connection, list[bytes]] = {}
    held_bytes = 0
    for command in turn:
        if type(command) is commands.SendData:
            size = len(command.data)
            if held_bytes + size > MOST_JOINED_BYTES and held:
                yield from _written(held)
                held_bytes = 0
            held.setdefault(command.connection, []).append(command.data)
            held_bytes += size
        else:
            if held:
                yield from _written(held)
                held_bytes = 0
            if type(command) is not Flush:
                yield command
    if held:
        yield from _written(held)
    then()


def _written(held: dict[Connection, list[bytes]]) -> list[commands.Command]:
    writes: list[commands.Command] = [
        commands.SendData(connection, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        for connection, pieces in held.items()
    ]
    held.clear()
    return writes
