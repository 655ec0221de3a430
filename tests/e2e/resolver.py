"""A third script in the tests' mitmdump: every name below leads-here.test is this machine's loopback."""

import socket

_ask = socket.getaddrinfo


def _answer(host, *arguments, **settings):
    name = host.decode() if isinstance(host, bytes) else host
    return _ask("127.0.0.1" if name and name.endswith(".leads-here.test") else host, *arguments, **settings)


def load(loader):
    socket.getaddrinfo = _answer


def done():
    socket.getaddrinfo = _ask
