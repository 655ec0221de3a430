import random

import pytest

from hivemind_addon.lab.sim.call import SimRequestFacts
from hivemind_addon.lab.sim.dialect import SimDialect
from hivemind_addon.lab.sim.faults import NAMED
from hivemind_addon.lab.sim.plan import GAP_S, course_of
from hivemind_addon.lab.sim.provider import ProviderSettings, SimProvider
from hivemind_addon.proxy.wire.outcome import TransportTrouble
from tests.cases import over


def course(fault):
    provider = SimProvider(ProviderSettings(), random.Random(0))
    provider.script("key", (NAMED[fault],))
    asked = SimRequestFacts(
        SimDialect.MESSAGES, "key", stream=True, chunks=101, max_tokens=200, interval_s=0.1, latency_s=2.0
    )
    return course_of(provider.begin(0.0, asked))


def test_a_good_answer_ends_when_all_is_generated():
    good = course("ok")
    assert (good.head_s, good.end_s, good.trouble, good.share) == (2.0, pytest.approx(12.0), None, 1.0)


@over(
    ("fault", "head_s", "end_s", "trouble", "shows"),
    [
        ("reset-before-head", None, 2.0, TransportTrouble.CLOSED_BEFORE_HEAD, False),
        ("refused-stream", None, 2.0, TransportTrouble.REFUSED_STREAM, False),
        ("head-then-reset", 2.0, 2.0 + GAP_S, TransportTrouble.CUT, False),
        ("stream-reset", 2.0, 7.0 + GAP_S, TransportTrouble.CUT, True),
    ],
)
def test_a_fault_ends_it_sooner(fault, head_s, end_s, trouble, shows):
    cut = course(fault)
    assert (cut.head_s, cut.end_s, cut.trouble, cut.shows_content) == (head_s, pytest.approx(end_s), trouble, shows)


def test_an_error_inside_a_stream_shows_content_unless_it_comes_first():
    assert not course("error-first").shows_content
    assert course("error-in-the-middle").shows_content
    assert course("error-in-the-middle").error is not None


def test_a_stall_is_a_long_silence():
    assert course("stall").silent_s == 5
    assert course("stall").end_s == pytest.approx(17.0)
