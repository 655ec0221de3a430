from hivemind_addon.proxy.host.flow_parts import destination, plain_headers
from tests.proxy.gate.samples import make_flow


def test_where_a_request_goes_is_its_sni_else_its_host():
    cases = (
        ("https://127.0.0.1/v1/messages", "api.anthropic.com", ("api.anthropic.com", 443)),
        ("https://api.anthropic.com/v1/messages", None, ("api.anthropic.com", 443)),
        ("http://api.anthropic.com:81/v1/messages", "other.test", ("api.anthropic.com", 81)),
    )
    assert [(url, sni, meant) for url, sni, meant in cases if destination(make_flow(url, sni=sni)) != meant] == []


def test_headers_are_found_by_lower_case_name_and_joined():
    fields = ((b"X-One", b"1"), (b"x-two", b"2"), (b"x-ONE", b"3"))
    assert plain_headers(fields) == {"x-one": "1, 3", "x-two": "2"}
