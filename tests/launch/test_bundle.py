import ssl
import stat

import pytest
import trustme

from hivemind_addon.api.trust import CERTIFICATE, KEY
from hivemind_addon.tools.launch.behind import NoBundle, certificates, holds_key, is_ours, write_bundle


@pytest.fixture
def confdir(tmp_path, monkeypatch):
    """A folder like mitmproxy's, and a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "mitmproxy"
    folder.mkdir()
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / CERTIFICATE))
    (folder / KEY).write_bytes(ca.private_key_pem.bytes() + ca.cert_pem.bytes())
    return folder


def test_the_bundle_holds_the_proxys_the_systems_and_the_users_certificates(confdir, tmp_path):
    users = tmp_path / "company.pem"
    trustme.CA().cert_pem.write_to_path(str(users))
    bundle = write_bundle(confdir, [str(users), "/nonexistent.pem"])
    held = certificates(bundle)
    assert set(certificates(confdir / CERTIFICATE)) | set(certificates(users)) < set(held)
    assert len(held) == len(set(held)) > 50
    assert len(ssl.create_default_context(cafile=bundle).get_ca_certs()) > 50
    assert is_ours(str(bundle))
    assert not is_ours(str(users))


def test_it_never_holds_a_key_even_when_a_users_file_does(confdir):
    bundle = write_bundle(confdir, [str(confdir / KEY)])
    assert holds_key(confdir / KEY)
    assert not holds_key(bundle)
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600


def test_the_same_certificates_are_the_same_file_and_nothing_else_is_left(confdir):
    first = write_bundle(confdir, [])
    written_at = first.stat().st_mtime_ns
    assert write_bundle(confdir, []) == first
    assert first.stat().st_mtime_ns == written_at
    assert list(first.parent.iterdir()) == [first]
    first.write_text("damaged")
    assert write_bundle(confdir, []).stat().st_size > 10_000


@pytest.mark.parametrize(("content", "says"), [(None, "hivemind run"), ("nothing", "holds no certificate")])
def test_without_the_proxys_certificate_there_is_one_line(confdir, content, says):
    (confdir / CERTIFICATE).unlink()
    if content:
        (confdir / CERTIFICATE).write_text(content)
    with pytest.raises(NoBundle, match=says) as caught:
        write_bundle(confdir, [])
    assert str(confdir / CERTIFICATE) in str(caught.value)
