from hivemind_addon.api.ticket import PoolKey
from hivemind_addon.proxy.capture.file import join
from hivemind_addon.proxy.capture.model import Capture
from hivemind_addon.proxy.capture.recording import Circumstances, Merge
from tests.capture.samples import POOL, make_call, make_limit

NAMED = PoolKey(POOL.host, "org-1", POOL.model_group)


def test_nothing_gives_an_empty_capture():
    assert join([], ["all of it"]) == Capture(damage=("all of it",))


def test_calls_stand_in_the_order_of_their_arrival():
    beside = Circumstances(began_wall=100.0, content=False)
    capture = join([(make_call("late", at_s=5.0, ended_s=6.0), beside), (make_call("early", ended_s=9.0), beside)])
    assert [call.id for call in capture.calls] == ["early", "late"]
    assert (capture.began_wall, capture.ended_s, capture.content) == (100.0, 9.0, False)


def test_a_second_recording_of_the_same_file_comes_later():
    first = make_call("first"), Circumstances(began_wall=100.0, profiles=("b",))
    second = make_call("second", at_s=1.0), Circumstances(began_wall=160.0, profiles=("a",), limits=(make_limit(),))
    capture = join([first, second])
    assert capture.calls[1].at_s == 61.0
    assert capture.calls[1].ended_s == 64.0
    assert capture.calls[1].attempts[0].at_s == 60.0
    assert capture.limits[0].at_s == 60.5
    assert capture.profiles == ("a", "b")


def test_calls_before_a_merge_are_of_the_merged_pool_too():
    before = make_call("before"), Circumstances(limits=(make_limit(),))
    after = make_call("after", pool=NAMED), Circumstances(merges=(Merge(NAMED, POOL),))
    capture = join([before, after])
    assert {call.pool for call in capture.calls} == {NAMED}
    assert capture.limits[0].pool == NAMED


def test_pools_that_merged_in_a_circle_end_it():
    beside = Circumstances(merges=(Merge(NAMED, POOL), Merge(POOL, NAMED)))
    assert join([(make_call(), beside)]).calls[0].pool in (POOL, NAMED)
