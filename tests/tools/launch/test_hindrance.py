"""What keeps one kind of agent from being scheduled, by where its calls go."""

from hivemind_addon.tools.launch.finding import Severity
from hivemind_addon.tools.launch.hindrance import hindrances
from hivemind_addon.tools.launch.programs import load_programs
from tests.cases import each

TABLE = load_programs()
HOSTS = ("api.anthropic.com", "api.openai.com", "*.azure.test", "localhost:9")


def found(program, hosts=HOSTS, **environment):
    chosen = TABLE.programs[program]
    return list(hindrances(chosen, environment=environment, table=TABLE, hosts=hosts, listens=("127.0.0.1:8080",)))


@each(
    ("program", "verdict", "words"),
    [
        ("cursor", Severity.NOTE, ("pass unscheduled", "vendor's own", "nothing to schedule")),
        ("windsurf", Severity.NOTE, ("nothing to schedule",)),
        ("copilot", Severity.BAD, ("with a GitHub login", "api.githubcopilot.com", "hosts: [api.githubcopilot.com]")),
        ("codex", Severity.NOTE, ("with a ChatGPT login", "chatgpt.com")),
    ],
)
def test_an_agent_whose_calls_no_profile_claims(program, verdict, words, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (finding,) = found(program)
    assert finding.verdict is verdict
    assert all(word in finding.text for word in words)


def test_an_agent_that_is_told_where_to_go_does_not_go_to_its_own_hosts():
    assert not found("copilot", COPILOT_PROVIDER_BASE_URL="https://west.azure.test/openai")
    (finding,) = found("copilot", COPILOT_PROVIDER_BASE_URL="https://gateway.test/v1")
    assert "COPILOT_PROVIDER_BASE_URL names gateway.test" in finding.text


def test_an_agent_whose_hosts_are_claimed_has_nothing_to_say():
    assert not found("claude")
    assert not found("aider")
