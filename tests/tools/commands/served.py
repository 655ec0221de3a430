"""A control socket with a kept report and scripted answers, in a thread: what commands talk to, without a proxy."""

import asyncio
import threading
from contextlib import contextmanager

from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.proxy.api.control import control_socket
from hivemind_addon.proxy.api.control_server import ControlServer
from tests.proxy.api.samples import reports_of


@contextmanager
def serving(report, *, port=8080, answer=lambda command: CommandReply(done=True, text=f"did {command}")):
    """Until the block ends `port` is served; what was asked is in the list."""
    asked = []
    loop = asyncio.new_event_loop()

    def command(one):
        asked.append(one)
        return answer(one)

    server = ControlServer(control_socket(port), reports=reports_of(lambda: report), command=command)

    def serve():
        asyncio.set_event_loop(loop)
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(120)
        yield asked
        ended = threading.Event()
        loop.call_soon_threadsafe(lambda: (server.close(), ended.set()))
        ended.wait(120)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(120)
        loop.close()
