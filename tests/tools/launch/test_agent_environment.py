"""One agent behind the proxy."""

import ssl
import stat
from urllib.parse import unquote, urlsplit

import pytest
import trustme
from msgspec.structs import replace

from hivemind_addon.formats.wire.proxy_user import proxy_words
from hivemind_addon.kernel.values.ticket import Delivery
from hivemind_addon.plugins.fleets.leases.choice import LeasePlace
from hivemind_addon.proxy.api.agent_secrets import split_password
from hivemind_addon.proxy.api.report import ProxyView
from hivemind_addon.proxy.api.trust import CERTIFICATE, KEY
from hivemind_addon.tools.launch import agent_environment as behind
from hivemind_addon.tools.launch.agent_environment import (
    NamelessSecret,
    NoBundle,
    agent_environment,
    asked_words,
    certificates,
    environment_changes,
    holds_key,
    is_ours,
    lacks_password,
    proved_name,
    write_bundle,
)
from hivemind_addon.tools.launch.programs import load_programs
from tests.cases import each

PROXY = ProxyView(pid=7, port=9090, listens=("127.0.0.1:9090",), confdir="/c", hosts=("api.anthropic.com",))


def test_what_is_asked_for_is_what_the_proxy_reads():
    words = asked_words(Delivery.WHOLE, priority="low", waits_s=1800, task="night/review-1")
    read = proxy_words(".".join(words))
    assert (read.delivery, read.priority.name, read.patience_s) == (Delivery.WHOLE, "LOW", 1800)
    assert read.task == "night/review-1"
    assert asked_words(Delivery.STREAM) == ["stream"]
    assert asked_words(Delivery.AUTO, priority="low") == ["prio-low"], "the proxy goes by what the agent says of itself"


def test_the_secret_of_an_agent_is_the_first_word_and_needs_its_name():
    environment = {"HIVEMIND_AGENT": "ann", "HIVEMIND_AGENT_SECRET": "s3cret"}
    name, words = proved_name(environment)
    password = ".".join(words + asked_words(Delivery.WHOLE, task="night/1"))
    assert (name, split_password(password)) == ("ann", ("s3cret", "whole.task-night/1"))
    assert proved_name({"HIVEMIND_AGENT": "ann"}) == ("", [])
    with pytest.raises(NamelessSecret, match="--agent NAME"):
        proved_name({"HIVEMIND_AGENT_SECRET": "s3cret"})


ENGINE = "valkey://cache:6379/0"
MEMBER = replace(PROXY, cluster="team", engine=ENGINE)


@each(
    ("proxy", "base", "expected", "told"),
    [
        (PROXY, {}, {}, ""),
        (MEMBER, {}, {"HIVEMIND_CLUSTER": ENGINE, "HIVEMIND_CLUSTER_NAME": "team"}, ""),
        (MEMBER, {"HIVEMIND_CLUSTER": "off"}, {}, ""),
        (MEMBER, {"HIVEMIND_CLUSTER": "valkey://other"}, {}, ""),
        (
            replace(MEMBER, engine_has_password=True),
            {"HIVEMIND_CLUSTER_PASSWORD": "hush"},
            {"HIVEMIND_CLUSTER": ENGINE, "HIVEMIND_CLUSTER_NAME": "team"},
            "",
        ),
        (replace(MEMBER, engine_has_password=True), {"HIVEMIND_CLUSTER": "valkey://:hush@cache"}, {}, ""),
        (replace(MEMBER, engine_has_password=True), {}, {}, "set HIVEMIND_CLUSTER_PASSWORD, or HIVEMIND_CLUSTER=off"),
    ],
)
def test_an_agent_s_leases_are_where_its_proxy_is_but_no_password_is_handed_on(
    monkeypatch, proxy, base, expected, told
):
    monkeypatch.setattr(behind, "write_bundle", lambda confdir, users: "/b.pem")
    changed = environment_changes(proxy, base, agent="a", words=[], table=load_programs())
    assert {name: value for name, value in changed.items() if "CLUSTER" in name} == expected
    assert told in lacks_password(proxy, base)
    assert bool(told) == bool(lacks_password(proxy, base))


SECRETS = {
    "HIVEMIND_CLUSTER_PASSWORD": "hush",
    "HIVEMIND_CLUSTER_SECRET": "0123456789abcdef",
    "HIVEMIND_ALERTS": "ntfy://me:hush@alerts.test/topic",
    "OPENAI_API_KEY": "sk-held",
    "UNSET_KEY": "",
}
HOLDER = replace(MEMBER, engine_has_password=True, key_variables=("ELSEWHERE_KEY", "OPENAI_API_KEY", "UNSET_KEY"))


@each(
    ("cluster", "theirs"),
    [
        ({}, None),
        ({"HIVEMIND_CLUSTER": "off"}, "off"),
        ({"HIVEMIND_CLUSTER": ENGINE}, ENGINE),
        ({"HIVEMIND_CLUSTER": "redis://:hush@cache"}, ENGINE),
        ({"HIVEMIND_CLUSTER": "redis://cache", "HIVEMIND_CLUSTER_USERNAME": "me"}, "valkey://me@cache:6379/0"),
        ({"HIVEMIND_CLUSTER": "valkey://u:hu/sh@cache"}, None),
    ],
)
def test_an_agent_gets_nothing_that_is_the_proxys_alone_and_its_leases_find_the_password(
    tmp_path, monkeypatch, cluster, theirs
):
    runtime = tmp_path / str(len(list(tmp_path.iterdir())))
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    own = {"PATH": "/bin", "ANTHROPIC_API_KEY": "sk-own", "HIVEMIND_AGENT_SECRET": "ann's", "UNSET_KEY": ""}
    given = {**own, **SECRETS, **cluster}
    got = agent_environment(HOLDER, given)
    assert got == own | ({k: v for k, v in cluster.items() if theirs}) | {"OPENAI_API_KEY": "held-by-hivemind"} | (
        {"HIVEMIND_CLUSTER": theirs} if theirs else {}
    )
    assert given["HIVEMIND_CLUSTER_PASSWORD"] == "hush"
    if theirs in (None, "off"):
        assert list(runtime.iterdir()) == []
        return
    (kept,) = (runtime / "hivemind").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    with LeasePlace.of(got).open(got) as store:
        assert store._address.password == "hush"
    assert agent_environment(HOLDER, got) == got, "nor does an agent of its own"
    with LeasePlace.of(got).open(got | {"HIVEMIND_CLUSTER_PASSWORD": "newer"}) as store:
        assert store._address.password == "newer"


def test_the_environment_has_the_name_the_port_and_one_bundle_with_the_users_own(monkeypatch):
    asked = []
    monkeypatch.setattr(behind, "write_bundle", lambda confdir, users: asked.append((str(confdir), users)) or "/b.pem")
    base = {"SSL_CERT_FILE": "/company.pem", "CURL_CA_BUNDLE": "/company.pem"}
    changed = environment_changes(PROXY, base, agent="night.a", words=["whole", "task-night/a"], table=load_programs())
    assert asked == [("/c", ["/company.pem"])]
    assert (changed["HIVEMIND_AGENT"], changed["HIVEMIND_PORT"]) == ("night.a", "9090")
    url = urlsplit(changed["HTTPS_PROXY"])
    assert (unquote(url.username), unquote(url.password)) == ("night.a", "whole.task-night/a")
    assert changed["SSL_CERT_FILE"] == "/b.pem"


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


@each(("content", "says"), [(None, "hivemind run"), ("nothing", "holds no certificate")])
def test_without_the_proxys_certificate_there_is_one_line(confdir, content, says):
    (confdir / CERTIFICATE).unlink(missing_ok=True)
    if content:
        (confdir / CERTIFICATE).write_text(content)
    with pytest.raises(NoBundle, match=says) as caught:
        write_bundle(confdir, [])
    assert str(confdir / CERTIFICATE) in str(caught.value)
