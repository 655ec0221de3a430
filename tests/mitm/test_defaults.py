import sys

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.test import taddons

from hivemind_addon.proxy.mitm.defaults import said_by_user, set_defaults


@pytest.fixture
def context(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["mitmdump"])
    with taddons.context(Proxyserver()) as context:
        context.options.update(confdir=str(tmp_path))
        yield context


async def test_the_proxy_is_loopbacks_and_moves_there_when_it_has_begun_to_listen_elsewhere(context):
    context.master.addons.get("proxyserver").is_running = False
    assert set_defaults()
    assert context.options.listen_host == "127.0.0.1"
    assert context.options.connection_strategy == "lazy"
    assert not set_defaults(), "once"


async def test_what_the_user_said_stays(context, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mitmdump", "--listen-host", "", "--set", "connection_strategy=eager"])
    context.options.update(connection_strategy="eager")
    assert not set_defaults()
    assert context.options.listen_host == ""
    assert context.options.connection_strategy == "eager"


@pytest.mark.parametrize(
    ("arguments", "yaml", "said"),
    [
        (["mitmdump"], "", False),
        (["mitmdump", "--set", "connection_strategy=lazy"], "", True),
        (["mitmdump", "--set", "other=1"], "connection_strategy: eager\n", True),
        (["mitmdump"], "# connection_strategy: eager\nother: 1\n", False),
    ],
)
async def test_whether_the_user_set_an_option(context, monkeypatch, tmp_path, arguments, yaml, said):
    monkeypatch.setattr(sys, "argv", arguments)
    (tmp_path / "config.yaml").write_text(yaml)
    assert said_by_user("connection_strategy") is said
