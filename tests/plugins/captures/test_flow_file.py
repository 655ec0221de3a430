import pytest
from mitmproxy.io import FlowReader

from hivemind_addon.plugins.captures.flow_file import Damaged, dump, read_flows, whole_bytes
from hivemind_addon.plugins.captures.model import NotACapture
from tests.proxy.gate.samples import make_flow


@pytest.fixture
def file(tmp_path):
    with (tmp_path / "file").open("w+b", buffering=0) as opened:
        yield opened


def read_to_damage(number):
    """The flows that can be read, and what is said of the rest."""
    read = []
    try:
        read.extend(read_flows(number))
    except Damaged as damaged:
        return read, str(damaged)
    return read, ""


def write(file, data):
    file.write(data)
    return file.fileno()


RECORDS = [dump(make_flow().get_state()) for _ in range(3)]


def test_flows_come_back_and_mitmproxys_own_reader_agrees(file):
    flows = list(read_flows(write(file, b"".join(RECORDS))))
    file.seek(0)
    assert [flow.get_state() for flow in flows] == [flow.get_state() for flow in FlowReader(file).stream()]


def test_a_file_that_is_cut_anywhere_gives_all_that_precedes(tmp_path):
    data = b"".join(RECORDS)
    ends = [sum(map(len, RECORDS[:count])) for count in range(4)]
    for part in range(20):
        cut = len(data) * part // 20
        whole = [end for end in ends if end <= cut]
        with (tmp_path / str(part)).open("w+b", buffering=0) as file:
            number = write(file, data[:cut])
            read, damage = read_to_damage(number)
            assert bool(damage) == (whole[-1] != cut), cut
            assert len(read) == len(whole) - 1, cut
            assert whole_bytes(number) == whole[-1], cut


def test_damage_in_the_middle_ends_the_reading_with_a_word(tmp_path):
    for damage in (b"999999999999:x", b"7:garbage}", b"x", b"0:}", b"\0\0\0\0", b"12:1:a;1:b;1:c;1:d;}"):
        with (tmp_path / "file").open("w+b", buffering=0) as file:
            read, said = read_to_damage(write(file, RECORDS[0] + damage + RECORDS[1]))
        assert f"from byte {len(RECORDS[0]):,} on" in said, damage
        assert len(read) == 1, damage


def test_another_file_is_not_taken_for_a_torn_one(tmp_path):
    for other in (b"It was a dark and stormy night.", b"{}", b"\x1f\x8b\0\0", b":::", b"12345678901234567"):
        with (
            (tmp_path / "file").open("w+b", buffering=0) as file,
            pytest.raises(NotACapture, match="something else"),
        ):
            whole_bytes(write(file, other))


def test_a_torn_first_record_leaves_an_empty_file(file):
    assert whole_bytes(write(file, RECORDS[0][:50])) == 0
