"""What the way through the engine adds to a call that nobody is in the way of."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

from hivemind_addon.sim.agents import HOST
from hivemind_addon.sim.certificate import write_certificates
from lab.bench.client import Client
from lab.bench.plan import route_of

_WARM = 50


@asynccontextmanager
async def quick_provider(folder):
    """A provider that answers at once, a process of its own; the settings that lead proxies there, as `--set` takes them."""
    folder.mkdir()
    files = write_certificates(folder, HOST)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lab.bench.provider", "--tls", str(files.certificate), str(files.key)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        port = json.loads(await process.stdout.readline())["port"]
        yield f"hivemind_redirect={HOST}=127.0.0.1:{port}", f"ssl_verify_upstream_trusted_ca={files.authority}"
    finally:
        process.kill()
        await process.wait()


async def pairs_s(ports, count):
    """Seconds of `count` calls at each of these proxies, in turns, by port."""
    client = Client()
    took_s = {port: [] for port in ports}
    for number in range(_WARM + count):
        # Whoever goes first finds other caches.
        for port in ports if number % 2 else reversed(ports):
            # Its base URL is the proxy's port, without TLS: what is measured is the scheduler's way.
            plan = {
                "route": route_of(port, f"127.0.0.1:{port}"),
                "concurrency": 1,
                "requests": 1,
                "body_bytes": 2_000,
                "streamed": False,
                "sessions": 1,
            }
            result = await client.load(plan)
            if result["failures"]:
                raise RuntimeError(f"a call at port {port} failed: {result['failures']}")
            if number >= _WARM:
                took_s[port] += result["latencies_s"]
    for port in ports:
        await client.close({"route": route_of(port, "")})
    return took_s
