"""A proxy before an origin that answers when a test says so, and clients in threads that ask it."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.origin import PLAIN, Origin, running_origin
from tests.e2e.proxy import PATIENCE_S, Proxy, body, for_host, profiles, queued, running

_numbers = itertools.count(1)


@dataclass
class House:
    """Its proxy's second mode leads to the origin; a profile says how many requests at a time."""

    proxy: Proxy
    origin: Origin
    threads: ThreadPoolExecutor

    def ask(self, name, *, path="/v1/messages", stream=False, headers=(), timeout=PATIENCE_S):
        """A request in a thread; its answer's future."""
        mine = {"x-test-id": name} | dict(headers)
        return self.threads.submit(self.proxy.post, path, body(stream=stream), headers=mine, timeout=timeout)

    def fill(self):
        """Use a slot up; what has it."""
        name = f"filler-{next(_numbers)}"
        answer = self.ask(name, stream=True)
        self.origin.wait_for(lambda _: name in self.names, "the filler's arrival")
        return answer, self.request(name)

    def hold(self, *names, **more):
        """Requests that are held, in this order."""
        answers = []
        for name in names:
            before = queued(self.proxy.state())
            answers.append(self.ask(name, **more))
            self.proxy.wait_for(lambda state, before=before: queued(state) == before + 1, f"{name} held")
        return answers

    @property
    def names(self):
        """Of what has arrived at the origin."""
        return [request.headers["x-test-id"] for request in self.origin.arrived]

    def request(self, name):
        """What has arrived under this name."""
        return next(request for request in self.origin.arrived if request.headers["x-test-id"] == name)

    def let_go(self, name):
        """Have it answered, once it arrives."""
        self.origin.wait_for(lambda _: name in self.names, f"{name}'s arrival")
        self.request(name).go.set()

    def assert_idle(self):
        """No ticket, stream or slot is left, and a new request goes at once."""
        self.proxy.settled()
        name = f"after-{next(_numbers)}"
        after = self.ask(name)
        self.let_go(name)
        assert after.result(PATIENCE_S).content == PLAIN
        self.proxy.settled()


@contextmanager
def running_house(folder, *arguments, slots=1, threads=8, **more):
    """A house whose origin has so many requests at a time."""
    with running_origin() as origin:
        settings = profiles(folder, house=for_host(origin.port, slots=slots))
        modes = ("regular", f"reverse:{origin.url}")
        with (
            running(folder / "conf", *settings, *arguments, modes=modes, **more) as proxy,
            ThreadPoolExecutor(threads) as pool,
        ):
            try:
                yield House(proxy, origin, pool)
            finally:
                origin.open()
