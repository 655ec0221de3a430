import pytest
from click import ClickException
from click.testing import CliRunner

from hivemind_addon.formats.base import resources
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import lab
from lab.generators import docs


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_addon_prints_the_script_that_mitmproxy_loads():
    assert run("setup", "addon").output == f"{resources.script_path()}\n"


def test_docs_check_names_stale_pages(monkeypatch):
    assert run("lab", "docs", "--check").exit_code == 0
    monkeypatch.setattr(docs, "check", lambda: ["docs/options.md"])
    result = run("lab", "docs", "--check")
    assert (result.exit_code, result.stderr) == (1, "Error: stale, run `make docs`: docs/options.md\n")


def test_docs_writes_and_names_what_was_stale(monkeypatch, tmp_path):
    monkeypatch.setattr(docs, "write", lambda: [tmp_path / "options.md"])
    assert run("lab", "docs").output == f"{tmp_path / 'options.md'}\n"


def test_the_lab_works_in_a_checkout_only(monkeypatch):
    monkeypatch.setattr(lab, "checkout_folder", lambda: None)
    entries = [entry for entry in lab._COMMANDS if isinstance(entry, lab.CheckoutEntry)]
    assert "prove" in {entry.name for entry in entries}
    for entry in entries:
        with pytest.raises(ClickException, match=f"`hivemind lab {entry.name}` needs a checkout of hivemind_addon"):
            entry.load()
