from h11._receivebuffer import ReceiveBuffer

from hivemind_addon.proxy.host.body import Body


def test_one_piece_is_kept_as_it_came():
    body, piece = Body(), b"x" * 1000
    body += piece
    assert bytes(body) is piece


def test_it_does_what_mitmproxys_own_buffer_does():
    ours, theirs = Body(), ReceiveBuffer()
    for piece in (b"", b"a", b"", b"bc", b"d"):
        ours += piece
        theirs += piece
        assert (bytes(ours), len(ours), bool(ours)) == (bytes(theirs), len(theirs), bool(theirs))
    ours.clear()
    assert not ours
    ours += b"again"
    assert bytes(ours) == b"again"
