import ssl

import pytest

from hivemind_addon.sim.certificate import write_certificates


def handshake(client: ssl.SSLContext, files, name):
    """A TLS handshake in memory. Raises what the client's check raises."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname=name), server.wrap_bio(to_server, to_client, True)]
    done = set()
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
    assert len(done) == 2


@pytest.fixture
def files(tmp_path):
    return write_certificates(tmp_path, "api.example.com")


def test_who_trusts_the_authority_accepts_the_host_even_when_checks_are_strict(files):
    client = ssl.create_default_context(cafile=files.authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    handshake(client, files, "api.example.com")


def test_another_name_is_refused(files):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(ssl.create_default_context(cafile=files.authority), files, "other.example.com")


def test_another_authority_is_refused(files, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    stranger = write_certificates(other, "api.example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ssl.create_default_context(cafile=stranger.authority), files, "api.example.com")


def test_the_key_is_its_owners_alone(files):
    assert files.key.stat().st_mode & 0o077 == 0
