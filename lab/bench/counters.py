"""A script in both proxies: tells the addon's counters to whoever connects to a port. It has no hook for requests.

Who says `write` is answered once the conversations are written that the addon holds until their sessions are silent.
"""

import asyncio
import json

from mitmproxy import ctx
from msgspec.structs import asdict


class Counters:
    def load(self, loader):
        loader.add_option("bench_counters_port", int, 0, "Where the counters are told.")

    async def running(self):
        self.server = await asyncio.start_server(self.tell, "127.0.0.1", ctx.options.bench_counters_port)

    async def tell(self, reader, writer):
        told = {}
        match (await reader.readline()).decode().strip():
            case "write":
                await write_held()
            case "counters":
                told = counters()
        writer.write(json.dumps(told).encode() + b"\n")
        await writer.drain()
        writer.close()


def counters():
    proxy = ctx.master.addons.get("hivemind").proxy
    snapshot = proxy.driver.snapshot()
    told = asdict(snapshot.counters)
    told["queued"] = sum(pool.queued for pool in snapshot.pools)
    told["guard_trips"] = max(told["guard_trips"], proxy.guard.trips)
    return told


async def write_held():
    addon = ctx.master.addons.get("hivemind")
    if addon is not None and addon.proxy.files.keeper is not None:  # bare mitmdump has no addon
        await addon.proxy.files.keeper.write_held()


addons = [Counters()]
