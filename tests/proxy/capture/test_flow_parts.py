from hivemind_addon.proxy.capture.flow_parts import destination
from tests.proxy.mitm.samples import make_flow


def test_where_a_request_goes_is_its_sni_else_its_host():
    cases = (
        ("https://127.0.0.1/v1/messages", "api.anthropic.com", ("api.anthropic.com", 443)),
        ("https://api.anthropic.com/v1/messages", None, ("api.anthropic.com", 443)),
        ("http://api.anthropic.com:81/v1/messages", "other.test", ("api.anthropic.com", 81)),
    )
    assert [(url, sni, meant) for url, sni, meant in cases if destination(make_flow(url, sni=sni)) != meant] == []
