import json
from pathlib import Path

import pytest

from hivemind_addon.tools.launch.programs import load_programs
from hivemind_addon.tools.mcp.session import caller_of
from hivemind_addon.tools.setup.model import FileFormat, SetupTrouble
from hivemind_addon.tools.setup.tools import TOOLS, ToolPlace
from tests.cases import each

HOME, PROJECT = Path("/nonexistent/me"), Path("/nonexistent/me/project")


@pytest.fixture
def place(tmp_path):
    def make(**more):
        given = {
            "home": tmp_path,
            "project": None,
            "environment": {},
            "command": "/opt/hivemind",
            "port": 8080,
            "table": load_programs(),
            "bundle": lambda: tmp_path / "ca.pem",
        }
        return ToolPlace(**(given | more))

    return make


def values(plan):
    return {entry.path: entry.value for file in plan.files for entry in file.entries}


def files(plan, base):
    return [str(file.path.relative_to(base)) for file in plan.files]


def test_every_tools_files_say_what_is_read_here(place, golden):
    parts = []
    for name, tool in TOOLS.items():
        for about, more in (("", {"port": 9090, "agent": "me"}), (" in a project", {"project": PROJECT})):
            try:
                plan = tool.plan_for(place(home=HOME, bundle=lambda: HOME / "ca.pem", **more))
            except SetupTrouble as error:
                parts.append(f"# {name}{about}: {error}")
                continue
            lines = [f"{file.path} {json.dumps([one.path, one.value])}" for file in plan.files for one in file.entries]
            assert lines
            assert not more.get("project") or "/opt/hivemind" not in str(lines), "everybody has it elsewhere"
            parts.append("\n".join([f"# {name}{about}", *lines, *(f"note: {note}" for note in plan.notes)]))
    golden("tools.txt", "\n\n".join(parts))


def test_codex_gets_no_variable_that_it_would_not_take_from_its_file(place, tmp_path):
    plan = TOOLS["codex"].plan_for(place())
    assert files(plan, tmp_path) == [".codex/.env", ".codex/config.toml"]
    said = values(plan)
    assert ("SSL_CERT_FILE",) in said
    assert not [path for path in said if path[0].startswith("CODEX_")]
    assert "XDG_RUNTIME_DIR" in said["mcp_servers", "hivemind"]["env_vars"]


@each("name", ["claude-code", "codex", "aider"])
def test_files_that_outdo_the_environment_leave_exec_and_fleets_their_names(place, name):
    said = values(TOOLS[name].plan_for(place()))
    assert not [path for path in said if path[-1] == "HIVEMIND_AGENT"]
    assert name != "codex" or ("HTTPS_PROXY",) not in said, "Codex asks for it before https_proxy"


def test_codex_tells_its_server_the_proxy_that_names_it(place):
    said = values(TOOLS["codex"].plan_for(place(port=9090)))
    passed = {name: said.get((name,), "") for name in said["mcp_servers", "hivemind"]["env_vars"]}
    caller = caller_of(passed)
    assert (caller.agent, caller.port) == ("codex", 9090)


def test_gemini_names_itself_since_it_keeps_the_proxys_address_from_its_servers(place):
    assert values(TOOLS["gemini"].plan_for(place()))["HIVEMIND_AGENT",] == "gemini"
    assert values(TOOLS["gemini"].plan_for(place(agent="me")))["HIVEMIND_AGENT",] == "me"


@pytest.mark.parametrize(
    ("theirs", "project", "hidden"),
    [
        (".env", "", True),
        (".gemini/.env", "", False),
        ("project/.env", "project", True),
        ("project/.gemini/.env", "project", False),
        (".env", "project", True),
        (".gemini/.env", "project", True),
        ("project/.env", "", False),
    ],
)
def test_gemini_reads_one_file_of_variables_and_keeps_the_one_that_it_has(place, tmp_path, theirs, project, hidden):
    (tmp_path / theirs).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / theirs).write_text("GEMINI_API_KEY=mine\n")
    folder = tmp_path / project if project else None
    plan = TOOLS["gemini"].plan_for(place(project=folder))
    own = (folder or tmp_path) / ".gemini"
    assert (
        [file.path for file in plan.files] == [own / "settings.json"]
        if hidden
        else [own / ".env", own / "settings.json"]
    )
    assert any(f"now {tmp_path / theirs}, which" in note for note in plan.notes) == hidden


def test_mcp_only_asks_for_no_bundle_and_sets_no_proxy(place):
    def no_bundle():
        raise AssertionError

    for tool in TOOLS.values():
        plan = tool.plan_for(place(mcp_only=True, bundle=no_bundle))
        assert "://" not in str(values(plan)), "no proxy's address"
        assert all(file.format is not FileFormat.DOTENV for file in plan.files)


def test_folders_of_their_own_are_obeyed(place, tmp_path):
    where = {
        "CLAUDE_CONFIG_DIR": str(tmp_path / "c"),
        "CODEX_HOME": str(tmp_path / "x"),
        "XDG_CONFIG_HOME": str(tmp_path / "o"),
        "COPILOT_HOME": str(tmp_path / "p"),
    }
    plans = {
        name: TOOLS[name].plan_for(place(environment=where)) for name in ("claude-code", "codex", "opencode", "copilot")
    }
    assert {name: files(plan, tmp_path) for name, plan in plans.items()} == {
        "claude-code": ["c/settings.json", "c/.claude.json"],
        "codex": ["x/.env", "x/config.toml"],
        "opencode": ["o/opencode/opencode.json"],
        "copilot": ["p/mcp-config.json"],
    }


def test_opencode_is_told_in_the_file_that_it_has(place, tmp_path):
    folder = tmp_path / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.jsonc").write_text("{}")
    plan = TOOLS["opencode"].plan_for(place())
    assert files(plan, tmp_path) == [".config/opencode/opencode.jsonc"]
    assert values(plan)["mcp", "hivemind"]["command"] == ["/opt/hivemind", "mcp"]


def test_a_tool_is_found_by_its_command_or_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert not any(tool.is_found(tmp_path) for tool in TOOLS.values())
    (tmp_path / ".gemini").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "aider").touch(0o755)
    assert [name for name, tool in TOOLS.items() if tool.is_found(tmp_path)] == ["gemini", "aider"]
