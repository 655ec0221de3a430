"""A script in a proxy: who connects to its port and says for how many seconds is told how late the event loop ran.

Late through its own work: where other processes had the processor meanwhile, that time is left out.
"""

import asyncio
import json
from time import thread_time

from mitmproxy import ctx

EVERY_S = 0.005


class Lag:
    def load(self, loader):
        loader.add_option("bench_lag_port", int, 0, "Where the lag is told.")

    async def running(self):
        self.server = await asyncio.start_server(self.tell, "127.0.0.1", ctx.options.bench_lag_port)

    async def tell(self, reader, writer):
        loop = asyncio.get_running_loop()
        end_at = loop.time() + float(await reader.readline())
        lags_s, over = [], loop.create_future()

        def sample(due_at, busy_before_s):
            now, busy_s = loop.time(), thread_time()
            lags_s.append(min(now - due_at, busy_s - busy_before_s))
            if now < end_at or len(lags_s) < 2:  # a busy machine may leave it one turn only
                loop.call_at(now + EVERY_S, sample, now + EVERY_S, busy_s)
            else:
                over.set_result(None)

        sample(loop.time(), thread_time())
        await over
        writer.write(json.dumps(lags_s).encode())
        await writer.drain()
        writer.close()


addons = [Lag()]
