"""A channel delivers each message once and in order, whatever becomes of the envelopes."""

import random

import msgspec
import pytest
from hypothesis import given, strategies

from hivemind_addon.plugins.cluster.channel import Channel

RESEND_S = 0.3
ACK_S = 0.1


def channel():
    return Channel(decode=msgspec.msgpack.decode, resend_s=RESEND_S, ack_s=ACK_S)


@given(strategies.integers(0, 2**32), strategies.integers(1, 60))
def test_each_message_comes_once_and_in_order_both_ways(seed, count):
    rng = random.Random(seed)
    ends, read = (channel(), channel()), ([], [])
    on_their_way: list[tuple[int, float, tuple]] = []
    now, sent = 0.0, 0
    while sent < count or any(len(got) < count for got in read):
        now += 0.05
        assert now < 0.05 * count + 60, "something was never delivered"
        if sent < count and rng.random() < 0.7:
            for end in ends:
                end.send(sent)
            sent += 1
        is_rough = now < 0.05 * count + 5  # afterwards all is well
        for number, end in enumerate(ends):
            if end.has_news or end.due_at <= now:
                taken = (now, *end.take(now))
                copies = rng.choice((0, 1, 1, 2)) if is_rough else 1
                on_their_way += [(1 - number, now, taken)] * copies
        rng.shuffle(on_their_way)
        for letter in on_their_way[: rng.randint(0, len(on_their_way)) if is_rough else None]:
            on_their_way.remove(letter)
            to, _, (at, ack, first, messages) = letter
            read[to].extend(ends[to].receive(at=at, ack=ack, first=first, messages=messages, now=now))
    assert read == (list(range(count)), list(range(count)))


def test_what_is_acknowledged_is_not_sent_again():
    one, other = channel(), channel()
    one.send("a")
    ack, first, messages = one.take(0.0)
    assert one.due_at == RESEND_S
    other.receive(at=0.0, ack=ack, first=first, messages=messages, now=10.0)
    assert other.due_at == 10.0 + ACK_S
    ack, first, messages = other.take(10.1)
    assert messages == []
    one.receive(at=10.1, ack=ack, first=first, messages=messages, now=0.2)
    assert one.due_at == float("inf")
    assert not one.has_news
    assert one.take(5.0)[2] == []


@pytest.mark.parametrize("delays_s", [(0.0, 0.4, 0.1), (0.4, 0.0)])
def test_the_quickest_envelope_says_how_far_the_clocks_are_apart(delays_s):
    end = channel()
    for number, delay_s in enumerate(delays_s):
        end.receive(at=100.0 + number, ack=0, first=1, messages=[], now=7.0 + number + delay_s)
    assert end.offset == pytest.approx(-93.0, abs=0.001)


@pytest.mark.parametrize("drift", [1e-4, -1e-4])
def test_clocks_that_drift_apart_are_followed(drift):
    end = channel()
    for second in range(0, 86_400, 10):
        end.receive(at=second * (1 + drift), ack=0, first=1, messages=[], now=second + 0.001)
    assert end.offset == pytest.approx(-drift * 86_400, abs=0.01)
