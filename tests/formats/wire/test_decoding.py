import gzip
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.wire import decoding
from hivemind_addon.formats.wire.decoding import MAX_FEED_BYTES, BodyDecoder, DecodeError, decode


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODERS = {
    "identity": lambda data: data,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
REAL = [name for name in ENCODERS if name != "identity"]
encodings = st.lists(st.sampled_from(sorted(ENCODERS)), max_size=3)


def encode(data: bytes, names: list[str]) -> bytes:
    for name in names:
        data = ENCODERS[name](data)
    return data


def feed_in_pieces(body: bytes, encoding: str, size: int) -> bytes:
    decoder = BodyDecoder(encoding)
    pieces = [decoder.feed(body[i : i + size]) for i in range(0, len(body), size)]
    return b"".join(pieces) + decoder.finish()


@given(st.binary(max_size=2000), encodings, st.integers(1, 700))
def test_every_encoding_and_stack_comes_back_at_any_chunk_size(data, names, size):
    body = encode(data, names)
    assert feed_in_pieces(body, ", ".join(names), size) == data
    assert decode(body, ",".join(names).upper(), 4000) == data


@given(st.binary(max_size=300), encodings, st.integers(1, 50))
def test_garbage_raises_nothing_but_decode_error(body, names, size):
    try:
        decoded = feed_in_pieces(body, ",".join(names), size)
    except DecodeError:
        return
    assert isinstance(decoded, bytes)


@given(st.text(max_size=60))
def test_any_header_value_is_known_or_a_decode_error(encoding):
    try:
        decoder = BodyDecoder(encoding)
    except DecodeError:
        return
    assert decoder.feed(b"") == b""


def test_a_body_that_stops_early_is_an_error_at_its_end(subtests):
    for name in REAL:
        with subtests.test(name=name):
            body = ENCODERS[name](b"some text that is long enough to be cut" * 20)
            decoder = BodyDecoder(name)
            decoder.feed(body[:-5])
            with pytest.raises(DecodeError, match="ends too early"):
                decoder.finish()


def test_an_empty_body_is_empty_under_any_encoding(subtests):
    for name in REAL:
        with subtests.test(name=name):
            assert decode(b"", name, 10) == b""


def test_deflate_without_the_zlib_header_is_read():
    assert feed_in_pieces(raw_deflate(b"hello" * 50), "deflate", 1) == b"hello" * 50


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_several_members_and_frames_are_joined_and_padding_is_dropped(size):
    assert feed_in_pieces(gzip.compress(b"one ") + gzip.compress(b"two") + b"\x00" * 9, "gzip", size) == b"one two"
    frame = zstandard.ZstdCompressor().compress
    assert feed_in_pieces(frame(b"one ") + frame(b"two") + b"\x00" * 9, "zstd", size) == b"one two"


def flushed(name: str, pieces: list[bytes]) -> list[bytes]:
    """What a server sends that flushes after every piece."""
    if name == "gzip":
        stream = zlib.compressobj(wbits=31)
        return [stream.compress(piece) + stream.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    if name == "br":
        compressor = brotli.Compressor()
        return [compressor.process(piece) + compressor.flush() for piece in pieces]
    frame = zstandard.ZstdCompressor().compressobj()
    return [frame.compress(piece) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for piece in pieces]


@pytest.mark.parametrize("name", ["gzip", "br", "zstd"])
def test_each_flushed_piece_of_a_stream_comes_out_at_once(name):
    pieces = [b"data: a\n\n", b"data: b\n\n", b"data: c\n\n"]
    decoder = BodyDecoder(name)
    assert [decoder.feed(piece) for piece in flushed(name, pieces)] == pieces


def test_a_bomb_is_refused_before_it_fills_the_memory(subtests):
    for name in REAL:
        with subtests.test(name=name):
            bomb = ENCODERS[name](bytes(2 * MAX_FEED_BYTES))
            with pytest.raises(DecodeError, match="expands too far"):
                BodyDecoder(name).feed(bomb)


def test_a_bomb_in_a_bomb_is_refused():
    bomb = gzip.compress(gzip.compress(bytes(2 * MAX_FEED_BYTES)))
    with pytest.raises(DecodeError, match="expands too far"):
        decode(bomb, "gzip, gzip", MAX_FEED_BYTES)


def test_a_whole_body_may_be_as_long_as_its_bound_and_no_longer(subtests):
    for name, encode in ENCODERS.items():
        with subtests.test(name=name):
            body = encode(bytes(5000))
            assert decode(body, name, 5000) == bytes(5000)
            with pytest.raises(DecodeError):
                decode(body, name, 4999)


@pytest.mark.parametrize("encoding", ["compress", "gzip, aws-chunked", "gzip,gzip,gzip,gzip,gzip", "💥" * 999])
def test_unknown_encodings_and_high_stacks_are_refused(encoding):
    with pytest.raises(DecodeError, match=r"^unknown content-encoding$"):
        BodyDecoder(encoding)


def test_a_brotli_that_cannot_stop_is_fed_in_slices(monkeypatch):
    monkeypatch.setattr(decoding, "_BROTLI_STOPS", False)
    assert feed_in_pieces(brotli.compress(b"hello" * 5000), "br", 100) == b"hello" * 5000
    with pytest.raises(DecodeError, match="expands too far"):
        BodyDecoder("br").feed(brotli.compress(bytes(2 * MAX_FEED_BYTES)))
