"""Who proves a name, what that costs, and who is refused; the way through a real proxy is in tests/e2e/test_access.py."""

import base64
import os
from dataclasses import replace

import pytest

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.proxy.api import agent_secrets
from hivemind_addon.proxy.api.agent_secrets import SecretHash, hash_secret, new_secret, read_secrets, write_secrets
from hivemind_addon.proxy.gate.authentication import AgentSecrets
from hivemind_addon.proxy.gate.followed_file import LOOK_EVERY_S
from tests.cases import each
from tests.proxy.gate.samples import make_flow, make_proxy


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A file with ann and bob; their secrets, and how often one was hashed."""
    monkeypatch.setattr(agent_secrets, "_COST", 2)
    secrets = {name: new_secret() for name in ("ann", "bob")}
    file = tmp_path / "secrets.json"
    write_secrets(file, {name: hash_secret(secret, 1.0) for name, secret in secrets.items()})
    hashed = []
    is_of = SecretHash.is_of
    monkeypatch.setattr(SecretHash, "is_of", lambda self, secret: hashed.append(secret) or is_of(self, secret))
    return file, secrets, hashed


def prove(agents, user, password, *, address="10.0.0.7", now=0.0):
    return agents.prove(user, password, address=address, now=now)


def test_a_secret_proves_its_own_name_and_its_words_follow_it(known):
    file, secrets, hashed = known
    agents = AgentSecrets(file)
    for _ in range(100):
        proof = prove(agents, "ann", secrets["ann"] + ".task-12.prio-low")
        assert (proof.name, proof.words) == ("ann", "task-12.prio-low")
        assert prove(agents, "bob", secrets["ann"]) is None
        assert prove(agents, "eve", secrets["ann"]) is None
        assert prove(agents, "ann", "") is None
    assert len(hashed) == 3, "each only once"


def test_who_guesses_takes_the_event_loop_for_so_long_only(known):
    file, secrets, hashed = known
    agents = AgentSecrets(file)
    assert prove(agents, "bob", secrets["bob"])
    for guess in range(1000):
        assert prove(agents, "ann", f"guess-{guess}") is None
    assert len(hashed) < 30
    assert prove(agents, "bob", secrets["bob"]), "who is known goes on"
    assert prove(agents, "ann", secrets["ann"], address="10.0.0.8"), "and so do all others"
    assert prove(agents, "ann", secrets["ann"] + ".whole", now=61.0)


def test_a_changed_file_counts_for_open_tunnels_too(known):
    file, secrets, _ = known
    agents = AgentSecrets(file)
    ann, bob = (prove(agents, name, secrets[name]) for name in ("ann", "bob"))
    new = new_secret()
    write_secrets(file, {**read_secrets(file), "ann": hash_secret(new, 2.0)})
    assert not agents.hold(ann, LOOK_EVERY_S)
    assert agents.hold(bob, LOOK_EVERY_S)
    assert prove(agents, "ann", secrets["ann"], now=LOOK_EVERY_S) is None
    assert prove(agents, "ann", new, now=LOOK_EVERY_S)


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_the_option_may_be_set_and_unset_while_the_proxy_runs(known):
    file, _, _ = known
    proxy = make_proxy()
    before, authentication = proxy.settings.current, proxy.intake.authentication
    assert not authentication.is_on
    proxy.follow(replace(before, secrets=AgentSecrets(file)))
    assert authentication.refuse(make_flow()).status_code == 407
    proxy.follow(before)
    assert authentication.refuse(make_flow()) is None


async def test_what_an_agent_is_called_is_what_it_proved_and_its_secret_goes_no_further(known):
    file, secrets, _ = known
    proxy = make_proxy(secrets=AgentSecrets(file))
    flow = make_flow(proxy_authorization=basic("ann", secrets["ann"] + ".task-Word-1"))
    assert proxy.intake.authentication.refuse(flow) is None
    proxy.intake.take_own_headers(flow)
    ticket = proxy.make_exchange(flow).ticket
    assert (ticket.agent, ticket.task) == ("ann", "Word-1")
    assert secrets["ann"] not in repr((flow.metadata, flow.request.headers, ticket))
    # The same connection, which was no tunnel: what one request proved is not another's.
    later = make_flow()
    later.client_conn = flow.client_conn
    assert proxy.intake.authentication.refuse(later).status_code == 407


async def test_a_tunnel_carries_the_name_of_its_connect_and_no_other_that_is_not_proved(known):
    file, secrets, _ = known
    proxy = make_proxy(secrets=AgentSecrets(file))
    authentication = proxy.intake.authentication
    connect = make_flow(method="CONNECT", proxy_authorization=basic("ann", secrets["ann"]))
    assert authentication.refuse(connect) is None
    inside, liar = make_flow(), make_flow(proxy_authorization=basic("bob", "x"))
    inside.client_conn = liar.client_conn = connect.client_conn
    assert authentication.refuse(inside) is None
    assert inside.metadata["proxyauth"] == ("ann", "")
    assert proxy.intake.name_of(connect.client_conn) == "ann"
    refusal = authentication.refuse(liar)
    assert (refusal.status_code, b"hivemind agent add NAME" in refusal.content) == (407, True)
    proxy.intake.forget(connect.client_conn)
    assert authentication.refuse(inside).status_code == 407


async def test_a_fault_of_ours_lets_nobody_in(known, monkeypatch):
    file, secrets, _ = known
    proxy = make_proxy(secrets=AgentSecrets(file))
    monkeypatch.setattr(AgentSecrets, "prove", lambda *_, **__: 1 / 0)
    refusal = proxy.intake.authentication.refuse(make_flow(proxy_authorization=basic("ann", secrets["ann"])))
    assert refusal.status_code == 503
    assert proxy.guard.trips == 1


async def test_nobody_is_asked_without_a_file():
    proxy = make_proxy()
    assert not proxy.intake.authentication.is_on
    assert proxy.intake.authentication.refuse(make_flow()) is None


@each(
    ("text", "mode", "says"),
    [
        ("", 0o600, "hivemind agent add"),
        ('{"agents": {}}', 0o620, "chmod 600"),
        ('{"agents": {"a:b": {"salt": "", "hash": "", "made_wall": 0}}}', 0o600, "agents.a:b"),
        ('{"agents": {"a": {"salt": "", "hash": "", "made_wall": 0}}}', 0o600, "hivemind agent rotate a"),
        ('{"agents": {}, "version": 2}', 0o600, "version"),
        (None, 0, "cannot be read"),
    ],
)
def test_a_bad_file_names_itself_and_the_cure(tmp_path, text, mode, says):
    file = tmp_path / "secrets.json"
    file.unlink(missing_ok=True)
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(DocumentError) as error:
        AgentSecrets(file)
    assert str(file) in str(error.value)
    assert says in str(error.value)
    assert os.linesep not in str(error.value)
