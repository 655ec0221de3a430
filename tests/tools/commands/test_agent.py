import json
import stat
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner

from hivemind_addon.proxy.api import agent_secrets
from hivemind_addon.proxy.api.agent_secrets import read_secrets
from hivemind_addon.tools.cli import main


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    monkeypatch.setattr(agent_secrets, "_COST", 2)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def run(*arguments, status=0):
    done = CliRunner().invoke(main, ["agent", *map(str, arguments)])
    assert done.exit_code == status, done.output
    assert "Traceback" not in done.output
    return done


def test_a_secret_is_printed_once_and_kept_as_a_hash_for_its_owner_alone(tmp_path):
    file = tmp_path / "team" / "secrets.json"
    url = urlsplit(run("add", "ann", "--file", file, "--host", "proxy.local", "-p", "9090").stdout.strip())
    assert (url.scheme, url.username, url.hostname, url.port) == ("http", "ann", "proxy.local", 9090)
    secret = unquote(url.password)
    assert read_secrets(file)["ann"].is_of(secret)
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "rotate ann" in run("add", "ann", "--file", file, status=1).output
    new = json.loads(run("rotate", "ann", "--file", file, "--json").stdout)["secret"]
    assert not read_secrets(file)["ann"].is_of(secret)
    assert read_secrets(file)["ann"].is_of(new)


def test_agents_are_listed_and_removed():
    assert "no agent has a secret" in run("list").output
    for name in ("bob", "ann"):
        run("add", name)
    assert [row["name"] for row in json.loads(run("list", "--json").stdout)] == ["ann", "bob"]
    run("rm", "bob")
    assert [row["name"] for row in json.loads(run("list", "--json").stdout)] == ["ann"]
    assert "there are ann" in run("rm", "bob", status=1).output


def test_a_name_that_no_address_or_rule_can_hold_is_refused(tmp_path):
    for name in ("a:b", "a b", "a@b", "rev-*", "x" * 81, ""):
        assert "no name for an agent" in run("add", name, "--file", tmp_path / "f", status=2).output
    assert not (tmp_path / "f").exists()
