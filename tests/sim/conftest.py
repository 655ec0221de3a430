import itertools
import ssl
from collections.abc import Callable, Iterator

import pytest
import trustme

from hivemind_addon.sim.faults import NAMED
from lab.running_server import RunningServer, running_server


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture(scope="package")
def plain() -> Iterator[RunningServer]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="package")
def secure(authority: trustme.CA) -> Iterator[RunningServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    with running_server(tls=context, http2=True) as server:
        yield server


_numbers = itertools.count(1)


@pytest.fixture
def new_key() -> Callable[[], str]:
    """Keys that no other test uses."""
    return lambda: f"sk-sim-{next(_numbers)}"


@pytest.fixture
def faults_of(plain: RunningServer, secure: RunningServer, new_key: Callable[[], str]) -> Callable[..., str]:
    """A fresh key whose attempts meet the named faults, at either server."""

    def key(*names: str) -> str:
        chosen = new_key()
        for server in (plain, secure):
            server.script(chosen, [NAMED[name] for name in names])
        return chosen

    return key
