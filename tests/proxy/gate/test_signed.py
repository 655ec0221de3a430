"""Requests that their clients sign: they leave as they came, and not after their signature has lapsed."""

from datetime import UTC, datetime

import pytest
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._hooks import HttpRequestHeadersHook

from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.proxy.host.http_layer import SchedulingHttpLayer
from hivemind_addon.proxy.host.stream import HivemindHoldHook
from tests.proxy.gate.playbook import Playbook, make_context
from tests.proxy.gate.samples import make_flow, make_proxy

PROFILE = """\
format: bedrock-invoke
hosts: [bedrock.test]
paths: ["/model/*/invoke"]
sign: {header: X-Amz-Date, valid_s: 240}
patience: {default_s: 600}
credentials: [{header: authorization, match: 'Credential=([^/]+)/\\d+/([^/]+)/'}]
retry: {first_backoff_s: 0.01, max_backoff_s: 0.02}
outcomes: [{kind: throttled, retry: true, error: [ThrottlingException]}]
"""
PATH = "/model/eu.anthropic.claude-v1%3A0/invoke"
BODY = b'{ "anthropic_version" : "bedrock-2023-05-31",\n "max_tokens":10, "messages": [] }'


@pytest.fixture
def profiles(tmp_path):
    (tmp_path / "signed.yaml").write_text(PROFILE)
    return tmp_path


def instant(wall):
    return f"{datetime.fromtimestamp(wall, UTC):%Y%m%dT%H%M%SZ}"


def signed_flow(**headers):
    return make_flow(f"https://bedrock.test{PATH}", **headers)


@pytest.mark.parametrize(("age_s", "patience_s"), [(0, 240), (200, 40), (-100, 340), (-3600, 600)])
async def test_a_signed_request_is_held_no_longer_than_it_is_valid(profiles, age_s, patience_s):
    proxy = make_proxy(profiles)
    wall = proxy.runtime.driver.clock.wall()
    ticket = proxy.make_exchange(signed_flow(x_amz_date=instant(wall - age_s))).ticket
    assert ticket.deadline_at - ticket.arrived_at == pytest.approx(patience_s, abs=2)
    assert ticket.shed_at < ticket.deadline_at


async def test_its_client_may_be_less_patient(profiles):
    proxy = make_proxy(profiles)
    wall = proxy.runtime.driver.clock.wall()
    ticket = proxy.make_exchange(signed_flow(x_amz_date=instant(wall), x_stainless_timeout="60")).ticket
    assert ticket.deadline_at - ticket.arrived_at == pytest.approx(60)


@pytest.mark.parametrize("headers", [{}, {"x_amz_date": "yesterday"}, {"x_amz_date": "20250130T996199Z"}])
async def test_what_says_no_instant_is_held_as_any_other(profiles, headers):
    ticket = make_proxy(profiles).make_exchange(signed_flow(**headers)).ticket
    assert ticket.deadline_at - ticket.arrived_at == pytest.approx(600)


async def test_one_that_comes_too_late_goes_on_at_once_and_a_person_is_told(profiles):
    proxy, told = make_proxy(profiles), []
    proxy.driver.listen(told.append)
    wall = proxy.runtime.driver.clock.wall()
    assert proxy.make_exchange(signed_flow(x_amz_date=instant(wall - 270))) is None
    assert proxy.live == {}
    (oddity,) = [one.what for one in told if isinstance(one, OddityNoted)]
    assert "bedrock.test passes unscheduled: signed 5 min ago by x-amz-date" in oddity


async def test_not_a_byte_of_it_changes_and_each_attempt_is_the_same(profiles):
    """Through the HTTP layer: throttled once, sent again."""
    proxy, held = make_proxy(profiles), []

    def on_hook(hook):
        match hook:
            case HttpRequestHeadersHook():
                proxy.intake.take_own_headers(hook.flow)
            case HivemindHoldHook():
                held.append(hook)
                return False
        return True

    fields = (
        b"Host: bedrock.test\r\nX-Amz-Date: %b\r\naccept-ENCODING:identity\r\nconnection: Keep-Alive\r\n"
        b"User-Agent:  Boto3/1.44  md/x \r\nx-note: a\r\nX-Note: b\r\nX-Amz-Security-Token: t==\r\n"
        b"x-hivemind-task-id: task-9\r\namz-sdk-request: attempt=1; max=3\r\n"
        b"Authorization: AWS4-HMAC-SHA256 Credential=AKIASIM/20261120/eu-west-1/bedrock/aws4_request, "
        b"SignedHeaders=accept-encoding;host;x-amz-date;x-hivemind-task-id;x-note, Signature=00ff\r\n"
        b"content-length: %d\r\n\r\n" % (instant(proxy.runtime.driver.clock.wall()).encode(), len(BODY))
    )
    book = Playbook(SchedulingHttpLayer(make_context(), HTTPMode.regular, proxy), on_hook=on_hook)
    target = PATH.encode() + b"?trace=%2F&a"
    book.from_client(b"POST http://bedrock.test" + target + b" HTTP/1.1\r\n" + fields + BODY)
    sent = await book.attempts(
        held,
        b"HTTP/1.1 429 Too Many Requests\r\nx-amzn-ErrorType: ThrottlingException\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    )
    assert len(sent) == 2
    assert sent[0] == sent[1]
    line, _, rest = sent[0].partition(b"\r\n")
    assert line == b"POST " + target + b" HTTP/1.1"
    assert rest.endswith(b"\r\n\r\n" + BODY)
    # A parser may write spaces around a value otherwise: a signature counts without them.
    assert values(rest) == values(fields)
    assert b"200 OK" in book.to_client


def values(head):
    lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")
    return [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
