"""A script in the proxies that answers questions on a port, a line each. The script has no hook for requests.

counters      the addon's counters
write         nothing, once the conversations are written that the addon holds until their sessions are silent
lag SECONDS   how late the event loop ran during these seconds, through its own work: where other processes had
              the processor meanwhile, that time is left out
"""

import asyncio
import json
from time import thread_time

from mitmproxy import ctx
from msgspec.structs import asdict

EVERY_S = 0.005


class Counters:
    def load(self, loader):
        loader.add_option("bench_counters_port", int, 0, "Where questions are answered.")

    async def running(self):
        self.server = await asyncio.start_server(self.tell, "127.0.0.1", ctx.options.bench_counters_port)

    async def tell(self, reader, writer):
        told = {}
        match (await reader.readline()).decode().split():
            case ["write"]:
                await write_held()
            case ["counters"]:
                told = counters()
            case ["lag", seconds]:
                told = await lags_s(float(seconds))
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


async def lags_s(seconds):
    loop = asyncio.get_running_loop()
    end_at = loop.time() + seconds
    lags, over = [], loop.create_future()

    def sample(due_at, busy_before_s):
        now, busy_s = loop.time(), thread_time()
        lags.append(min(now - due_at, busy_s - busy_before_s))
        if now < end_at or len(lags) < 2:  # a busy machine may leave it one turn only
            loop.call_at(now + EVERY_S, sample, now + EVERY_S, busy_s)
        else:
            over.set_result(None)

    sample(loop.time(), thread_time())
    await over
    return lags


async def write_held():
    addon = ctx.master.addons.get("hivemind")
    if addon is not None and addon.proxy.files.keeper is not None:  # bare mitmdump has no addon
        await addon.proxy.files.keeper.write_held()


addons = [Counters()]
