"""Nothing of a request that is over waits for the garbage collector: it goes at once, with its bodies."""

import json
from contextlib import closing, contextmanager
from http.client import HTTPConnection

import pytest

from hivemind_addon.sim.faults import NAMED, OK, ErrorStatus, StreamCut, StreamError
from tests.e2e.conftest import Call, versions
from tests.e2e.proxy import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("leftovers")]

ASKED = 5


class Leftovers:
    """Asks on one connection: those that close leave something of mitmproxy's own."""

    def __init__(self, port):
        self.connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def close(self):
        self._ask("collect")
        self.connection.close()

    def _ask(self, then):
        self.connection.request("GET", f"http://probe.test/leftovers?then={then}")
        return json.loads(self.connection.getresponse().read())

    def forget(self):
        """Whatever was left until now. The question before may have left something that only the next one finds."""
        while self.since() or self.since():
            pass

    def since(self):
        return self._ask("leave")


@contextmanager
def looking(stage):
    with closing(Leftovers(stage.proxy.port)) as leftovers:
        yield leftovers


CASES = {
    "plain": (False, OK),
    "streamed": (True, OK),
    "retried": (False, NAMED["429"]),
    "retried stream": (True, StreamError(1)),
    "cut and sent again": (True, StreamCut(1)),
    "an error that is passed on": (False, ErrorStatus(400)),
}
NEW_CONNECTIONS = {"h1": {"retried stream", "cut and sent again"}, "h2": {"cut and sent again"}}
"""What ends an upstream connection of each version; an HTTP/2 client's request ends any of HTTP/1.1."""
OF_A_REQUEST = {"HTTPFlow", "Request", "Response", "Headers", "ScheduledStream", "Exchange", "Ticket", "AnswerReader"}


@versions
def test_a_request_that_is_over_leaves_nothing_for_the_collector(stage, subtests, key, upstream, client):
    host = f"https://{upstream}.sim.test"
    with looking(stage) as leftovers, stage.proxy.client(http2=client == "h2") as http:
        for number, (name, (stream, fault)) in enumerate(CASES.items()):
            with subtests.test(name):
                calls = [Call(f"{key}-{number}-{ask}", stream=stream) for ask in range(ASKED)]
                for call in calls[1:]:
                    stage.providers.script(call.key, [fault])
                http.send(calls[0].request(host))  # the connections are there
                leftovers.forget()
                for call in calls[1:]:
                    assert http.send(call.request(host)).is_success != (fault == ErrorStatus(400))
                found = leftovers.since()
                if name in NEW_CONNECTIONS[upstream] or (client, upstream) == ("h2", "h1"):
                    assert not OF_A_REQUEST & set(found)  # mitmproxy's connections leave something of their own
                else:
                    assert found == {}
