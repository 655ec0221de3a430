"""What one turn of the event loop sends: one write for each connection.

mitmproxy writes each command's bytes at once, and asyncio tries to send each write at once: a head, its body and its
end would be three system calls, and wake the peer up to three times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mitmproxy.proxy import commands

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mitmproxy.connection import Connection

MOST_JOINED_BYTES = 64 * 1024
"""More is not copied to be joined: a system call is cheaper."""


class Flush(commands.Command):
    """What the turn has sent so far is written now: somebody waits for it, and the turn goes on for a while."""


def in_one_write(turn: Iterable[commands.Command]) -> Iterator[commands.Command]:
    """A turn's commands, in which what goes to one connection is joined; nothing of it is passed by anything else."""
    held: dict[Connection, list[bytes]] = {}
    held_bytes = 0
    for command in turn:
        if command.__class__ is commands.SendData:
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
            if command.__class__ is not Flush:
                yield command
    if held:
        yield from _written(held)


def _written(held: dict[Connection, list[bytes]]) -> Iterator[commands.Command]:
    for connection, pieces in held.items():
        yield commands.SendData(connection, pieces[0] if len(pieces) == 1 else b"".join(pieces))
    held.clear()
