"""What the measurement of a cluster is made of; all of it is run by `make machines`."""

import asyncio

from hivemind_addon.sim.exchange import pause
from lab.fleets.tunnel import Tunnel


async def test_what_a_cut_link_is_given_arrives_when_it_is_mended():
    async def echo(reader, writer):
        while piece := await reader.read(100):
            writer.write(piece)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, Tunnel(server.sockets[0].getsockname()[1]) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        link.cut()
        writer.write(b"two")
        late_reader, late_writer = await asyncio.open_connection("127.0.0.1", link.port)
        late_writer.write(b"late")
        answers = [asyncio.create_task(reader.readexactly(3)), asyncio.create_task(late_reader.readexactly(4))]
        await pause(0.05)  # time enough to arrive, were it whole
        assert not any(answer.done() for answer in answers)
        link.mend()
        assert await asyncio.gather(*answers) == [b"two", b"late"]
        writer.close()
        late_writer.close()
