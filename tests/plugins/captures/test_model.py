import msgspec
import pytest

from hivemind_addon.kernel.values.ticket import Demand, OutcomeKind
from hivemind_addon.plugins.captures.model import VERSION, Capture, ConcurrencyMove, NotACapture, decode, encode
from tests.plugins.captures.samples import POOL, make_attempt, make_call, make_capture, make_limit


def test_a_capture_survives_json():
    refused = make_attempt(
        kind=OutcomeKind.THROTTLED, reason="429 rate_limit_error", status=429, chunks=(), usage=None, retry_after_s=3.0
    )
    cut = make_attempt(2, kind=OutcomeKind.FAILED, status=None, head_after_s=None, charged=Demand(input_tokens=4))
    capture = make_capture(
        make_call(attempts=(refused, cut, make_attempt(3))),
        limits=(make_limit(), make_limit(window_s=None, dimension=None)),
        moves=(ConcurrencyMove(1.0, POOL, 7, "529"),),
        damage=("the last 12 bytes",),
    )
    assert decode(encode(capture)) == capture


def test_what_a_later_version_adds_is_passed_over():
    later = msgspec.json.decode(encode(Capture())) | {"news": [1]}
    assert decode(msgspec.json.encode(later)) == Capture()


def test_a_newer_version_is_refused_with_the_cure():
    later = msgspec.json.decode(encode(Capture())) | {"version": VERSION + 1}
    with pytest.raises(NotACapture, match="upgrade"):
        decode(msgspec.json.encode(later))


def test_what_is_no_capture_is_said_to_be_none():
    for data in (b"", b"[]", b"{}", b'{"version": 1, "calls": 3}', b"\xff"):
        with pytest.raises(NotACapture, match="no capture"):
            decode(data)
