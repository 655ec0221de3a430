import pytest

from hivemind_addon.system.hosts import host_parts, normal_host
from tests.cases import each


@each(
    ("pattern", "parts"),
    [
        ("API.Example.com.", ("api.example.com", None)),
        ("localhost:8000", ("localhost", 8000)),
        ("[::1]:8000", ("::1", 8000)),
        ("[::1]", ("::1", None)),
        ("*.example.com:443", ("*.example.com", 443)),
        ("bücher.example", ("xn--bcher-kva.example", None)),
        ("my_host", ("my_host", None)),
    ],
)
def test_hosts_are_read_in_one_spelling(pattern, parts):
    assert host_parts(pattern) == parts


def test_a_name_that_idna_cannot_write_stays_as_it_is():
    assert normal_host("Bücher..example") == "bücher..example"


@each("pattern", ["a.example:0", "a.example:65536", "a.example:x", "a b", "", "https://a.example"])
def test_what_is_no_host_is_refused(pattern):
    with pytest.raises(ValueError, match=r"no (host name|port)"):
        host_parts(pattern)
