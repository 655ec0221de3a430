"""A script in both proxies: tells the addon's counters to whoever connects to a port. It has no hook for requests."""

import asyncio
import json

from mitmproxy import ctx
from msgspec.structs import asdict


class Counters:
    def load(self, loader):
        loader.add_option("bench_counters_port", int, 0, "Where the counters are told.")

    async def running(self):
        self.server = await asyncio.start_server(self.tell, "127.0.0.1", ctx.options.bench_counters_port)

    async def tell(self, _reader, writer):
        proxy = ctx.master.addons.get("hivemind").proxy
        snapshot = proxy.driver.snapshot()
        counters = asdict(snapshot.counters)
        counters["queued"] = sum(pool.queued for pool in snapshot.pools)
        counters["guard_trips"] = max(counters["guard_trips"], proxy.guard.trips)
        writer.write(json.dumps(counters).encode())
        await writer.drain()
        writer.close()


addons = [Counters()]
