"""`hivemind setup` by an agent's call: the real command, in a home of its own."""

import json

import pytest

from hivemind_addon.tools.mcp.installing import SetupProgram
from hivemind_addon.tools.setup.tools import TOOLS
from tests.mcp.stage import failing, given

pytestmark = pytest.mark.slow


def test_what_can_be_set_up_is_what_the_command_knows():
    assert {one.value for one in SetupProgram} == {*TOOLS, "all"}


async def test_it_prints_and_writes_nothing_until_it_is_told_to(stage, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    file = tmp_path / ".cursor" / "mcp.json"
    async with stage.client() as client:
        shown = await given(client, "setup", program="cursor")
        assert shown["done"]
        assert '"mcpServers"' in shown["text"]
        assert not file.exists()
        await given(client, "setup", program="cursor", action="write")
        assert json.loads(file.read_text())["mcpServers"]["hivemind"]["args"] == ["mcp"]
        await given(client, "setup", program="cursor", action="remove")
        assert not file.exists() or "hivemind" not in file.read_text()


async def test_what_cannot_be_done_is_told(stage, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text("{broken")
    async with stage.client() as client:
        told = await given(client, "setup", program="cursor", action="write")
        assert not told["done"]
        assert "mcp.json" in told["text"]
        assert "Traceback" not in told["text"]
        assert "Invalid enum value 'vim'" in await failing(client, "setup", program="vim")
    assert (tmp_path / ".cursor" / "mcp.json").read_text() == "{broken"
