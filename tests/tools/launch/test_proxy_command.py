import sys

import pytest

from hivemind_addon.formats.base.resources import script_path
from hivemind_addon.proxy.run import program
from hivemind_addon.tools.launch import proxy_command as commands
from hivemind_addon.tools.launch.proxy_command import (
    PATIENCE_S,
    CompanyProxy,
    NoLoop,
    NoMitmproxy,
    UnknownOption,
    UpstreamUnusable,
    check_loop,
    check_options,
    child_environment,
    has_mode,
    mitmproxy_program,
    proxy_command,
    served_port,
    upstream_of,
)
from tests.cases import each
from tests.e2e.proxy import MITMDUMP


def value_after(command, option):
    return command[command.index(option) + 1]


def test_it_listens_on_loopback_from_the_beginning_and_outlasts_every_client():
    command = proxy_command(port=9090).first
    assert command[:6] == (sys.executable, "-P", "-m", program.__name__, "auto", "mitmdump")
    assert value_after(command, "--listen-host") == "127.0.0.1"
    assert value_after(command, "--listen-port") == "9090"
    assert value_after(command, "--mode") == "regular"
    assert value_after(command, "-s") == str(script_path())
    timeouts = [int(one.partition("=")[2]) for one in command if one.startswith("tcp_timeout=")]
    assert timeouts[0] > PATIENCE_S


@each(
    ("error", "says"),
    [
        (ModuleNotFoundError("No module named 'uvloop'"), "uvloop is not installed; leave --loop out, or pip install"),
        (
            ImportError("libuv.so.1: no such file"),
            r"uvloop does not load \(libuv.so.1: no such file\); leave --loop out",
        ),
    ],
)
def test_an_event_loop_that_was_asked_for_and_is_not_there_is_told_with_its_cure(monkeypatch, error, says):
    assert proxy_command(port=9090, web=True, loop="uvloop").first[4:6] == ("uvloop", "mitmweb")

    def fail(name):
        raise error

    monkeypatch.setattr(commands, "import_module", fail)
    check_loop("auto")
    check_loop("asyncio")
    with pytest.raises(NoLoop, match=says):
        check_loop("uvloop")


def test_what_the_user_says_to_mitmproxy_goes_on_as_it_is_and_wins():
    options = ("--listen-host", "::1", "--set", "tcp_timeout=5", "--mode", "regular@9999", "-q")
    command = proxy_command(port=9090, options=options).first
    assert command[-len(options) :] == options
    assert command.count("--listen-host") == command.count("--mode") == 1
    assert [one for one in command if one.startswith("tcp_timeout")] == ["tcp_timeout=5"]


@each(
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
    assert made.first[5] == "mitmweb"
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


@each("options", [("-v",), ("-q",), ("--flow-detail", "2"), ("--set", "termlog_verbosity=info"), ("--verbose",)])
def test_who_says_how_much_is_told_is_heard(options):
    assert not set(calm(*options)) & {"termlog_verbosity=alert", "flow_detail=0"}


def test_only_the_first_start_forgets_what_was_ordered():
    made = proxy_command(port=1, fresh=True)
    assert made.first[-1] == "hivemind_fresh=true"
    assert "hivemind_fresh=true" not in made.again


@each(
    ("value", "mode", "auth"),
    [
        ("http://proxy.corp:3128", "upstream:http://proxy.corp:3128", ""),
        ("proxy.corp", "upstream:http://proxy.corp:80", ""),
        ("https://proxy.corp/", "upstream:https://proxy.corp:443", ""),
        ("http://me:p%40ss@proxy.corp:1", "upstream:http://proxy.corp:1", "me:p@ss"),
        ("http://[2001:db8::1]:3128", "upstream:http://[2001:db8::1]:3128", ""),
    ],
)
def test_the_environments_proxy_becomes_ours(value, mode, auth):
    for name in ("HTTPS_PROXY", "https_proxy", "all_proxy"):
        found = upstream_of({name: value}, 8080)
        assert (found.mode, found.auth) == (mode, auth)
        assert found.options == (["--upstream-auth", auth] if auth else [])


def test_the_https_one_counts_first():
    both = {"http_proxy": "http://a:1", "HTTPS_PROXY": "http://b:2", "ALL_PROXY": "http://c:3"}
    assert upstream_of(both, 8080).url == "http://b:2"


@each("value", ["", "http://agent:x@127.0.0.1:8080", "http://localhost:8080"])
def test_none_and_ourselves_are_no_upstream(value):
    assert upstream_of({"HTTPS_PROXY": value}, 8080) is None


def test_another_proxy_of_this_machine_is_one():
    assert upstream_of({"HTTPS_PROXY": "http://127.0.0.1:3128"}, 8080).url == "http://127.0.0.1:3128"


@each("value", ["socks5://proxy.corp:1080", "http://proxy.corp:port", "http://"])
def test_what_mitmproxy_cannot_go_through_is_one_line(value):
    with pytest.raises(UpstreamUnusable, match=r"HTTPS_PROXY.*unset it"):
        upstream_of({"HTTPS_PROXY": value}, 8080)


@each(
    ("options", "says"),
    [
        (["--listen-prot", "9"], "no such option: --listen-prot; did you mean --listen-port?"),
        (["--fresch"], "no such option: --fresch; did you mean --fresh?"),
        (["--nonsense"], "no such option: --nonsense"),
        (["-Z"], "no such option: -Z"),
        (
            ["--set", "hivemind_agents=a", "--set", "tcp_timeot=5"],
            "--set tcp_timeot: no such option; did you mean tcp_timeout?",
        ),
        (["--set=listen_prt=5"], "--set listen_prt: no such option; did you mean listen_port?"),
    ],
)
def test_what_mitmproxy_does_not_know_is_told_with_the_nearest(options, says):
    with pytest.raises(UnknownOption) as error:
        check_options(options, MITMDUMP, ("--fresh", "--web"))
    assert str(error.value) == says


def test_what_it_knows_passes_also_cut_short_and_run_together():
    check_options(["--no-http2", "--ssl", "-nq", "--ignore-hosts=-x", "--set", "tcp_timeout=5", "~u .*"], MITMDUMP)


def test_what_is_known_without_asking_is_known_to_both_programs(monkeypatch):
    names = [word for name in sorted(commands._USUAL_NAMES) for word in ("--set", f"{name}=x")]
    monkeypatch.setattr(commands, "_USUAL_NAMES", frozenset())
    for web in (False, True):
        check_options(names, mitmproxy_program(web=web))


@each(
    "options",
    [["--set", "hivemind_nonsense=1", "--mode=regular", "-q"], ["-s", "mine.py", "--set", "mine=1"], ["--set"]],
)
def test_it_is_not_asked_for_what_it_cannot_know_or_is_sure_to(monkeypatch, options):
    monkeypatch.setattr(commands, "_output_of", lambda *_: "")
    check_options(options, MITMDUMP)


def test_a_program_that_does_not_answer_refuses_nothing(tmp_path):
    check_options(["--nonsense", "--set", "nonsense=1"], tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "port"),
    [
        ((), 8080),
        (("--listen-port", "9000"), 9000),
        (("--mode", "reverse:http://127.0.0.1:7000@9001", "--mode", "regular@9002"), 9001),
        (("--mode=regular@127.0.0.1:9003",), 9003),
        (("--set", "listen_port=9004"), 9004),
        (("--set=mode=regular@9005",), 9005),
        (("--mode", "reverse:http://127.0.0.1:7000"), 8080),
    ],
)
def test_the_port_that_is_served_may_be_said_to_mitmproxy(options, port):
    assert served_port(options, 8080) == port
