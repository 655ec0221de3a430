import json

import msgspec
import pytest
from mitmproxy.addons.savehar import SaveHar

from hivemind_addon.kernel.values.ticket import OutcomeKind, PoolKey
from hivemind_addon.plugins.captures.file import calls_by_header, join, read_capture, strip_capture
from hivemind_addon.plugins.captures.flow_file import dump
from hivemind_addon.plugins.captures.model import Capture, NotACapture, encode
from hivemind_addon.plugins.captures.recording import Circumstances, Merge
from tests.plugins.captures.captured import answered, record
from tests.plugins.captures.samples import POOL, make_attempt, make_call, make_limit
from tests.proxy.gate.samples import make_flow

REFUSED = make_attempt(kind=OutcomeKind.THROTTLED, reason="429", status=429, chunks=(), usage=None, retry_after_s=2.0)
CALLS = [
    make_call(f"call-{number}", at_s=float(number), ended_s=number + 4.0, attempts=(REFUSED, make_attempt(2)))
    for number in range(4)
]


def write(path, *records):
    path.write_bytes(b"".join(records))
    return path


def test_what_is_written_is_read_again(tmp_path):
    beside = Circumstances(began_wall=1e9, proxy_version="7", profiles=("anthropic",), limits=(make_limit(),))
    capture = read_capture(write(tmp_path / "c", record(CALLS[0], beside=beside), *map(record, CALLS[1:])))
    assert capture.calls == tuple(CALLS)
    assert capture.limits == (make_limit(),)
    assert (capture.proxy_version, capture.profiles, capture.damage) == ("7", ("anthropic",), ())


def test_a_crash_anywhere_keeps_all_that_precedes(tmp_path):
    records = [record(call) for call in CALLS]
    data = b"".join(records)
    for part in range(1, 21):
        cut = len(data) * part // 20
        whole = sum(sum(map(len, records[: count + 1])) <= cut for count in range(4))
        path = write(tmp_path / "c", data[:cut])
        if whole:
            capture = read_capture(path)
            assert capture.calls == tuple(CALLS[:whole]), cut
            assert bool(capture.damage) == (cut != sum(map(len, records[:whole]))), cut
        else:
            with pytest.raises(NotACapture, match="nothing in it that can be read"):
                read_capture(path)


def test_an_empty_file_is_a_capture_of_nothing(tmp_path):
    assert read_capture(write(tmp_path / "c")).calls == ()


def test_a_call_of_a_later_version_is_passed_over_and_told(tmp_path):
    flow = answered(make_flow())
    flow.metadata["hivemind_call"] = {"id": 7}
    capture = read_capture(write(tmp_path / "c", dump(flow.get_state()), record(CALLS[0])))
    assert capture.calls == (CALLS[0],)
    assert capture.damage == ("1 calls could not be understood",)


def test_what_is_no_capture_is_refused_in_one_line_with_file_and_cure(tmp_path):
    path = tmp_path / "novel.txt"
    for data in (b"A novel.", b"{", b'{"a": 1}', b"[1]", b'{"log": {"entries": [{}]}}', b"\xff\xfe\0"):
        path.write_bytes(data)
        with pytest.raises(NotACapture) as refused:
            read_capture(path)
        told = str(refused.value)
        assert (str(path) in told, "\n" in told) == (True, False), data
        assert "record one" in told or "export it" in told, data


def test_a_missing_file_and_a_folder_are_refused_likewise(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(NotACapture, match=str(path)):
            read_capture(path)


def test_json_that_show_has_printed_is_read_again(tmp_path):
    capture = read_capture(write(tmp_path / "c", *map(record, CALLS)))
    (tmp_path / "c.json").write_bytes(encode(capture))
    assert read_capture(tmp_path / "c.json") == capture


def test_har_is_read_as_far_as_it_tells(tmp_path):
    flow = answered(make_flow(x_claude_code_session_id="s-1"))
    har = SaveHar().make_har([flow])
    (tmp_path / "c.har").write_text(json.dumps(har))
    (call,) = read_capture(tmp_path / "c.har").calls
    assert (call.session, call.end, call.model) == ("s-1", "delivered", "claude-sonnet-4-5")
    assert call.attempts[0].usage.output_tokens == 7


def test_a_copy_without_words_has_the_same_calls(tmp_path):
    flow = answered(make_flow(content=b'{"model": "m", "messages": [{"role": "user", "content": "unspeakable"}]}'))
    path = write(tmp_path / "c", *(record(call, flow) for call in CALLS), b"torn")
    assert b"unspeakable" in path.read_bytes()
    assert strip_capture(path, tmp_path / "d") == 4
    stripped = tmp_path / "d"
    assert b"unspeakable" not in stripped.read_bytes()
    assert stripped.stat().st_mode & 0o777 == 0o600
    assert read_capture(stripped).calls == tuple(CALLS)
    assert not read_capture(stripped).content
    with pytest.raises(FileExistsError):
        strip_capture(path, stripped)


def test_calls_are_found_by_a_header_of_their_request(tmp_path):
    tagged = write(tmp_path / "c", record(CALLS[0], answered(make_flow(x_sim_call="a"))), record(CALLS[1]))
    assert calls_by_header(tagged, "x-sim-call") == {"a": CALLS[0]}


def test_metadata_are_plain_json(tmp_path):
    path = write(tmp_path / "c", record(CALLS[0]))
    from hivemind_addon.plugins.captures.flow_file import read_flows

    with path.open("rb") as file:
        (flow,) = read_flows(file.fileno())
    assert msgspec.json.decode(msgspec.json.encode(flow.metadata)) == flow.metadata


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
