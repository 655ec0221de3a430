import sys

import pytest

from hivemind_addon.resources import script_path
from hivemind_addon.tools.launch import proxy_command as commands
from hivemind_addon.tools.launch.programs import PATIENCE_S
from hivemind_addon.tools.launch.proxy_command import (
    CompanyProxy,
    NoMitmproxy,
    child_environment,
    has_mode,
    proxy_command,
)


def value_after(command, option):
    return command[command.index(option) + 1]


def test_it_listens_on_loopback_from_the_beginning_and_outlasts_every_client():
    command = proxy_command(port=9090).first
    assert command[0].endswith("/mitmdump")
    assert value_after(command, "--listen-host") == "127.0.0.1"
    assert value_after(command, "--listen-port") == "9090"
    assert value_after(command, "--mode") == "regular"
    assert value_after(command, "-s") == str(script_path())
    timeouts = [int(one.partition("=")[2]) for one in command if one.startswith("tcp_timeout=")]
    assert timeouts[0] > PATIENCE_S


def test_what_the_user_says_to_mitmproxy_goes_on_as_it_is_and_wins():
    options = ("--listen-host", "::1", "--set", "tcp_timeout=5", "--mode", "regular@9999", "-q")
    command = proxy_command(port=9090, options=options).first
    assert command[-len(options) :] == options
    assert command.count("--listen-host") == command.count("--mode") == 1
    assert [one for one in command if one.startswith("tcp_timeout")] == ["tcp_timeout=5"]


@pytest.mark.parametrize(
    ("options", "has"),
    [
        (["--mode", "socks5"], True),
        (["--mode=socks5"], True),
        (["--set", "mode=socks5"], True),
        (["--set", "a=b"], False),
    ],
)
def test_a_mode_of_the_users_is_seen(options, has):
    assert has_mode(options) is has


def test_a_companys_proxy_is_the_mode():
    command = proxy_command(port=1, upstream=CompanyProxy("http://corp:3128", "me:secret")).first
    assert value_after(command, "--mode") == "upstream:http://corp:3128"
    assert value_after(command, "--upstream-auth") == "me:secret"


def test_ollama_is_a_second_mode():
    command = proxy_command(port=1, ollama=True).first
    modes = [command[index + 1] for index, one in enumerate(command) if one == "--mode"]
    assert modes == ["regular", f"reverse:http://127.0.0.1:11434@{commands.OLLAMA_PORT}"]


def test_mitmweb_opens_its_browser_once():
    made = proxy_command(port=1, web=True)
    assert made.first[0].endswith("/mitmweb")
    assert made.again == (*made.first, "--no-web-open-browser")
    assert proxy_command(port=1).again == proxy_command(port=1).first


def test_a_python_without_mitmproxy_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NoMitmproxy, match="install hivemind-addon there"):
        proxy_command(port=1)


def test_the_proxy_itself_goes_through_no_proxy():
    assert child_environment({"HTTPS_PROXY": "x", "no_proxy": "y", "PATH": "z"}) == {"PATH": "z"}


def calm(*options, web=False):
    """What is set about how much is told."""
    said = proxy_command(port=1, web=web, options=options).first
    return [one for one in said if one.startswith(("termlog_verbosity", "flow_detail"))]


def test_it_tells_only_what_a_person_should_know():
    assert calm() == ["termlog_verbosity=alert", "flow_detail=0"]
    assert calm("--set", "flow_detail=2") == ["termlog_verbosity=alert", "flow_detail=2"]
    assert calm(web=True) == ["termlog_verbosity=alert"]  # mitmweb has no flow_detail


@pytest.mark.parametrize(
    "options", [("-v",), ("-q",), ("--flow-detail", "2"), ("--set", "termlog_verbosity=info"), ("--verbose",)]
)
def test_who_says_how_much_is_told_is_heard(options):
    assert not set(calm(*options)) & {"termlog_verbosity=alert", "flow_detail=0"}


def test_only_the_first_start_forgets_what_was_ordered():
    made = proxy_command(port=1, fresh=True)
    assert made.first[-1] == "hivemind_fresh=true"
    assert "hivemind_fresh=true" not in made.again
