"""Somebody before mitmweb's page: `python -m lab.bench.watcher URL` takes every update, as a browser does."""

import asyncio
import sys

from tornado.websocket import websocket_connect


async def watch(url):
    connection = await websocket_connect(url, max_message_size=2**30)
    print('{"watching": true}', flush=True)
    while await connection.read_message() is not None:
        pass


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1]))
