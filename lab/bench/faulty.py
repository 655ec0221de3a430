"""The simulated provider as a process: `python -m lab.bench.faulty SETTINGS`, a JSON file with the fields of
ProviderSettings. It prints a JSON line with its port when it is ready.
"""

import asyncio
import json
import sys
from pathlib import Path

import msgspec

from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.server import SimServer


async def _serve(settings):
    server = SimServer(settings)
    await server.start()
    print(json.dumps({"port": server.port}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ProviderSettings)))
