"""`hivemind open`: a key from the control socket, and how it comes into a browser without standing where others read."""

import getpass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
from click.testing import CliRunner

from hivemind_addon.proxy.api.command import CommandReply, OpenPage, PageKey
from hivemind_addon.proxy.system.folders import runtime_folder
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import open_page
from tests.tools.commands.served import serving
from tests.tools.dash.samples import report

pytestmark = pytest.mark.usefixtures("folders")
KEY = PageKey("http://127.0.0.1:9090/#key=abc", 60.0)


def opened(*words, answer=None):
    said = answer or CommandReply(done=True, text="a key", value=msgspec.to_builtins(KEY))
    with serving(report(), port=9090, answer=lambda _: said) as asked:
        result = CliRunner().invoke(main, ["open", *words, "-p", "9090"])
    assert asked == [OpenPage(getpass.getuser())]
    return result


def test_a_browser_gets_a_file_that_only_its_owner_reads(monkeypatch):
    seen = []
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(open_page.webbrowser, "open", lambda url: seen.append(url) or True)
    result = opened()
    assert result.exit_code == 0, result.output
    (url,) = seen
    file = Path(unquote(urlsplit(url).path))
    assert (url[:7], file.parent, file.stat().st_mode & 0o777) == ("file://", runtime_folder(), 0o600)
    assert f"url={KEY.url}" in file.read_text()
    assert KEY.url not in result.output
    assert "hivemind open -p 9090 --print" in result.output


@pytest.mark.parametrize("words", [("--print",), ()])
def test_the_address_is_printed_where_no_browser_is(monkeypatch, words):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 22")
    monkeypatch.setattr(open_page.webbrowser, "open", lambda _: pytest.fail("there is none"))
    result = opened(*words)
    assert (result.exit_code, result.stdout) == (0, f"{KEY.url}\n")
    assert "ssh -L 9090:127.0.0.1:9090" in result.stderr


def test_what_the_proxy_refuses_is_one_line(monkeypatch):
    result = opened("--print", answer=CommandReply(done=False, text="add --mode regular"))
    assert (result.exit_code, result.stderr) == (1, "Error: add --mode regular\n")
