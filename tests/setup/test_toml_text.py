import tomllib

import pytest

from hivemind_addon.tools.setup.model import SetupTrouble
from hivemind_addon.tools.setup.toml_text import put, read, take

PATH = ("mcp_servers", "hivemind")
SERVER = {"command": "/a b/hivemind", "args": ["mcp", "-p", "9090"]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        'model = "x" # why\n\n[mcp_servers.other]\ncommand = "y"   # kept\n',
        '[mcp_servers]\n[mcp_servers.other]\ncommand = "y"\n\n# the end\n',
        'a = 1\n\n[[projects]]\npath = "p"\n',
        '[mcp_servers]\nother = {command = "y"}\n',
        '"odd key" = 1\n\n\n',
    ],
)
def test_what_is_put_in_is_there_and_taken_out_again_leaves_what_was(text):
    changed = put(text, PATH, SERVER)
    data = tomllib.loads(changed)
    assert data["mcp_servers"].pop("hivemind") == SERVER
    if not data["mcp_servers"]:
        del data["mcp_servers"]
    before = tomllib.loads(text)
    if before.get("mcp_servers") == {}:
        del before["mcp_servers"]
    assert data == before
    assert changed.startswith(text)
    assert read(changed) == tomllib.loads(changed)
    assert take(changed, PATH) == text


def test_a_file_without_an_end_of_line_gets_one():
    assert put("a = 1", PATH, SERVER).startswith("a = 1\n\n[mcp_servers.hivemind]\n")


def test_where_a_table_cannot_be_added_nothing_is():
    with pytest.raises(SetupTrouble):
        put('mcp_servers = {other = {command = "y"}}\n', PATH, SERVER)


def test_damage_is_said():
    with pytest.raises(SetupTrouble, match=r"is no TOML .*mend it first"):
        read("a = \n")
