"""Proxies of two releases in one cluster: what is new is overlooked, and what cannot be understood is said."""

import random

import msgspec
from msgspec import Raw

from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.plugins.cluster.messages import (
    VERSION,
    Arrived,
    Fetch,
    Fetched,
    Join,
    Leased,
    Packet,
    Publish,
    TakeLease,
)
from hivemind_addon.plugins.cluster.node import ClusterNode, Role
from tests.kernel.samples import ticket

encode = msgspec.msgpack.encode


def coordinator(now=0.0):
    node = ClusterNode(
        me="old",
        rng=random.Random(0),
        make_scheduler=lambda: Scheduler(rng=random.Random(0)),
    )
    for _ in range(40):
        node.poll(now)
        for request in node.drain_outbox(now):
            if isinstance(request, TakeLease):
                node.answered(Leased("old", 1, request.asked_at), now)
            elif isinstance(request, Fetch):
                node.answered(Fetched(None), now)
        now += 0.1
    assert node.role is Role.COORDINATOR
    return node, now


def packet(*messages, version=VERSION):
    return encode(
        Packet(
            version=version,
            sender="new",
            epoch=1,
            session=1,
            to_coordinator=True,
            at=0.0,
            ack=0,
            first=1,
            messages=[Raw(message) for message in messages],
        )
    )


def test_fields_and_messages_of_a_newer_release_are_overlooked():
    node, now = coordinator()
    join = msgspec.msgpack.decode(encode(Join((), (), (), (), ())))
    arrived = msgspec.msgpack.decode(encode(Arrived(ticket("t", at=0.0))))
    arrived["ticket"]["mood"] = "cheerful"
    node.receive(packet(encode({**join, "greeting": "hello"}), encode({"type": "sings"}), encode(arrived)), now)
    node.poll(now)
    (published,) = [one for one in node.drain_outbox(now) if isinstance(one, Publish)]
    assert published.to == "new"
    assert b"admits" in published.data
    assert (
        dict(node.cluster_view(now).members and [(one.name, one.in_flight) for one in node.cluster_view(now).members])[
            "new"
        ]
        == 1
    )


def test_a_protocol_that_means_something_else_is_told_of_once():
    node, now = coordinator()
    node.drain_events()
    for _ in range(3):
        node.receive(packet(encode(Join((), (), (), (), ())), version=VERSION + 1), now)
    (told,) = [event for event in node.drain_events() if isinstance(event, OddityNoted)]
    assert "new speaks version 2 of the protocol, and this proxy 1" in told.what
    assert [one.name for one in node.cluster_view(now).members] == ["old"]
