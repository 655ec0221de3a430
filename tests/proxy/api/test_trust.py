from pathlib import Path

from hivemind_addon.proxy.api.trust import KEY, ca_certificate, cure_of_distrust


def test_the_cure_names_the_certificate_and_never_the_key(tmp_path):
    cure = cure_of_distrust("api.anthropic.com", tmp_path)
    assert "api.anthropic.com" in cure
    assert str(ca_certificate(tmp_path)) in cure
    assert "hivemind exec" in cure
    assert KEY not in cure
    assert "\n" not in cure


def test_a_home_is_a_home():
    assert ca_certificate(Path("~/.mitmproxy")) == Path.home() / ".mitmproxy" / "mitmproxy-ca-cert.pem"
