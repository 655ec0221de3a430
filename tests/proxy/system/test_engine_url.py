from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio

from hivemind_addon.proxy.system.engine_url import BadEngineUrl, check_cluster_name, parse_engine_url
from tests.cases import each


@each(
    ("text", "shown", "redis_url"),
    [
        ("valkey://host", "valkey://host:6379/0", "redis://host:6379/0"),
        ("redis://host:1234/5", "valkey://host:1234/5", "redis://host:1234/5"),
        (" valkey://[::1]:7/ ", "valkey://[::1]:7/0", "redis://[::1]:7/0"),
        ("valkeys://host", "valkeys://host:6379/0", "rediss://host:6379/0?ssl_check_hostname=true"),
        (
            "rediss://host?ssl_cert_reqs=none&ssl_check_hostname=false",
            "valkeys://host:6379/0?ssl_cert_reqs=none&ssl_check_hostname=false",
            "rediss://host:6379/0?ssl_check_hostname=false&ssl_cert_reqs=none",
        ),
        ("unix:///run/my%20valkey.sock?db=3", "unix:///run/my%20valkey.sock?db=3", "unix:///run/my%20valkey.sock?db=3"),
        ("valkey://me@host", "valkey://me@host:6379/0", "redis://me@host:6379/0"),
        ("valkey://me:s%40/x@host", "valkey://me@host:6379/0", "redis://me:s%40%2Fx@host:6379/0"),
        ("valkey://:secret@host/1", "valkey://host:6379/1", "redis://:secret@host:6379/1"),
        ("unix://me:secret@/s", "unix://me@/s", "unix://me:secret@/s"),
    ],
)
def test_a_url_is_read_and_shown_without_its_password(text, shown, redis_url):
    address = parse_engine_url(text.replace("s%40/x", "s%40%2Fx"))
    assert (address.shown, address.redis_url) == (shown, redis_url)
    assert not address.password or address.password not in repr(address)
    assert parse_engine_url(address.redis_url).redis_url == redis_url


@each("library", [redis.ConnectionPool, redis.asyncio.ConnectionPool])
def test_the_client_library_understands_it(library, tmp_path):
    ca = tmp_path / "ca.pem"
    ca.touch()
    made = library.from_url(
        parse_engine_url(f"valkeys://m%C3%A9:p%2Fw@host:1/2?ssl_ca_certs={ca}").redis_url
    ).make_connection()
    assert (made.host, made.port, made.db, made.username, made.password) == ("host", 1, 2, "mé", "p/w")
    assert library.from_url(parse_engine_url("unix:///s?db=4").redis_url).make_connection().db == 4


def test_a_password_may_come_from_the_environment_and_the_url_s_own_wins():
    variables = {"HIVEMIND_CLUSTER_USERNAME": "me", "HIVEMIND_CLUSTER_PASSWORD": "hush"}
    found = parse_engine_url("valkey://host", variables)
    assert (found.username, found.password, found.shown) == ("me", "hush", "valkey://me@host:6379/0")
    found = parse_engine_url("valkey://you:own@host", variables)
    assert (found.username, found.password) == ("you", "own")


@each(
    ("text", "says"),
    [
        ("", "is no engine's URL; write valkey://HOST:PORT/DB"),
        ("host:6379", "is no engine's URL"),
        ("valkey:host", "is no engine's URL"),
        ("http://host", "is no engine's URL"),
        ("valkey://", "has no host"),
        ("valkey:///0", "has no host"),
        ("valkey://host:0", "port 0"),
        ("valkey://host:http", "no port that is a number"),
        ("valkey://host:99999", "no port that is a number"),
        ("valkey://[::1", "no host"),
        ("valkey://host/one", "database is no number"),
        ("valkey://host/1/2", "database is no number"),
        ("valkey://u:12#hush@host", "write what is special in a password as %XX"),
        ("valkey://u:12/hush@host", "write what is special in a password as %XX"),
        ("valkey://u:hu#sh@host", "write what is special in a password as %XX"),
        ("valkey://u:hu/sh@host", "HIVEMIND_CLUSTER_PASSWORD"),
        ("valkey://u:hu?sh@host", "HIVEMIND_CLUSTER_PASSWORD"),
        ("valkey://host?password=hush", "before the host, or set HIVEMIND_CLUSTER_PASSWORD"),
        ("valkey://host?ssl_ca_certs=ca.pem", "ssl_ca_certs is for TLS; write valkeys://"),
        ("valkeys://host?ssl_ca_cert=ca.pem", "did you mean ssl_ca_certs?"),
        ("valkeys://host?ssl_ca_certs=/no/ca.pem", "ssl_ca_certs: there is no file '/no/ca.pem'"),
        ("valkeys://host?ssl_cert_reqs=maybe", "one of required, optional, none, not 'maybe'"),
        ("valkey://host?db=3", "'db' is no option"),
        ("unix://run/sock", "unix:///run/valkey/valkey.sock"),
        ("unix://", "unix:///run/valkey/valkey.sock"),
        ("unix:///s?db=x", "database is no number"),
    ],
)
def test_what_is_wrong_names_the_option_and_the_cure_and_no_password(text, says):
    with pytest.raises(BadEngineUrl) as caught:
        parse_engine_url(text, option="hivemind_cluster")
    told = str(caught.value)
    assert told.startswith("hivemind_cluster: ")
    assert says in told
    assert "\n" not in told
    for secret in ("hush", "hu#sh", "hu/sh", "hu?sh"):
        assert secret not in told


@each("name", ["", "a b", "{x}", "-x", "x" * 65, "ü"])
def test_a_cluster_s_name_is_plain(name):
    with pytest.raises(BadEngineUrl, match=r"^--cluster-name: .* is no name"):
        check_cluster_name(name)


def test_a_relative_file_is_found_from_other_folders_too(tmp_path, monkeypatch):
    (tmp_path / "ca.pem").touch()
    monkeypatch.chdir(tmp_path)
    shown = parse_engine_url("valkeys://host?ssl_ca_certs=ca.pem").shown
    assert urlsplit(shown).query == f"ssl_ca_certs={tmp_path}/ca.pem"
