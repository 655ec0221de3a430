"""What the measurement of a cluster is made of; all of it is run by `make machines`."""

import asyncio

from hivemind_addon.sim.exchange import pause
from lab.bench.machines.link import Link
from lab.bench.machines.page import BEGIN, END, table, written
from lab.bench.machines.scenarios import Row

KILLED = Row("Engine killed", "nobody lost", "none lost", True)


def test_a_row_that_is_measured_again_replaces_its_older_one_and_the_rest_stays():
    page = written("# Cluster\n", [KILLED, Row("429s", "≤ 0.5 %", "0", True)])
    assert table([KILLED]).splitlines()[-1] in page
    again = written(page + "\nMore.\n", [Row("Engine killed", "nobody lost", "3 lost", False)])
    assert again.startswith(f"# Cluster\n{BEGIN}\n")
    assert again.endswith(f"{END}\n\nMore.\n")
    lines = [line for line in again.splitlines() if line.startswith("| ")]
    assert lines[2:] == ["| Engine killed | nobody lost | 3 lost | **not kept** |", "| 429s | ≤ 0.5 % | 0 | kept |"]


async def test_what_a_cut_link_is_given_arrives_when_it_is_mended():
    async def echo(reader, writer):
        while piece := await reader.read(100):
            writer.write(piece)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, Link(server.sockets[0].getsockname()[1]) as link:
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
