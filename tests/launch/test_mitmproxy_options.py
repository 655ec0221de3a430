import pytest

from hivemind_addon.tools.launch import proxy_command as mitmproxy_options
from hivemind_addon.tools.launch.proxy_command import UnknownOption, check_options
from tests.e2e.proxy import MITMDUMP


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen-prot", "9"], "no such option: --listen-prot; did you mean --listen-port?"),
        (["--fresch"], "no such option: --fresch; did you mean --fresh?"),
        (["--nonsense"], "no such option: --nonsense"),
        (["-Z"], "no such option: -Z"),
        (["--set", "hivemind_agents=a", "--set", "tcp_timeot=5"], "--set tcp_timeot: no such option; did you mean tcp_timeout?"),
        (["--set=listen_prt=5"], "--set listen_prt: no such option; did you mean listen_port?"),
    ],
)  # fmt: skip
def test_what_mitmproxy_does_not_know_is_told_with_the_nearest(options, says):
    with pytest.raises(UnknownOption) as error:
        check_options(options, MITMDUMP, ("--fresh", "--web"))
    assert str(error.value) == says


def test_what_it_knows_passes_also_cut_short_and_run_together():
    check_options(["--no-http2", "--ssl", "-nq", "--ignore-hosts=-x", "--set", "tcp_timeout=5", "~u .*"], MITMDUMP)


@pytest.mark.parametrize(
    "options",
    [["--set", "hivemind_nonsense=1", "--mode=regular", "-q"], ["-s", "mine.py", "--set", "mine=1"], ["--set"]],
    ids=["usual", "of a script", "cut"],
)
def test_it_is_not_asked_for_what_it_cannot_know_or_is_sure_to(monkeypatch, options):
    monkeypatch.setattr(mitmproxy_options, "_says", lambda *_: "")
    check_options(options, MITMDUMP)


def test_a_program_that_does_not_answer_refuses_nothing(tmp_path):
    check_options(["--nonsense", "--set", "nonsense=1"], tmp_path / "none")
