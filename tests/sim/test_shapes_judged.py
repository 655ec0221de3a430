"""Each provider's own words are judged by its profile as they are meant."""

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.hints import read_hints
from hivemind_addon.formats.wire.outcome import judge_answer
from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.sim.shapes import REFUSALS, written
from tests.cases import each

NOW = 1_800_000_000.0
PROFILES = {"kimi": "moonshot", "nim": "nvidia", "gemini-capacity": "code-assist", "gemini-credits": "code-assist"}
"""Where the first word of a name is not its profile's."""
OVERLOADED, THROTTLED, FAILED, FINAL = (
    OutcomeKind.OVERLOADED,
    OutcomeKind.THROTTLED,
    OutcomeKind.FAILED,
    OutcomeKind.IGNORED,
)
MEANT = {
    "openrouter-in-flight": OVERLOADED,
    "openrouter-too-big": FINAL,
    "openrouter-credits": FINAL,
    "openrouter-free-minute": THROTTLED,
    "openrouter-upstream": OVERLOADED,
    "openrouter-200": OVERLOADED,
    "openrouter-in-stream": FAILED,
    "minimax-rpm": THROTTLED,
    "minimax-tpm": THROTTLED,
    "minimax-timeout": FAILED,
    "minimax-balance": FINAL,
    "minimax-plan": FINAL,
    "xai-200": OVERLOADED,
    "xai-rate": THROTTLED,
    "xai-credits": FINAL,
    "nim-rate": THROTTLED,
    "nim-overload": OVERLOADED,
    "zai-concurrency": OVERLOADED,
    "zai-frequency": THROTTLED,
    "zai-overload": OVERLOADED,
    "zai-arrears": FINAL,
    "kimi-overload": OVERLOADED,
    "kimi-rate": THROTTLED,
    "kimi-quota": FINAL,
    "dashscope-rate": THROTTLED,
    "dashscope-burst": OVERLOADED,
    "dashscope-tokens": THROTTLED,
    "dashscope-arrears": FINAL,
    "azure-rate": THROTTLED,
    "azure-busy": OVERLOADED,
    "groq-flex": OVERLOADED,
    "mistral-not-on-plan": FINAL,
    "deepseek-balance": FINAL,
    "cerebras-in-stream": THROTTLED,
    "gemini-minute": THROTTLED,
    "gemini-capacity": OVERLOADED,
    "gemini-no-quota": FINAL,
    "gemini-credits": FINAL,
    "vertex-shared": OVERLOADED,
    "vertex-provisioned": THROTTLED,
    "gemini-openai-minute": THROTTLED,
    "bedrock-not-ready": OVERLOADED,
}
WALLS = {
    "openrouter-free-day",
    "zai-day",
    "zai-wall",
    "kimi-wall",
    "copilot-week",
    "gemini-day",
    "bedrock-day",
}
"""They end the account's calls until an instant."""


def judged(name: str):
    first = name.split("-", maxsplit=1)[0]
    profile = load_profiles(None).by_name[PROFILES.get(name) or PROFILES.get(first, first)]
    answer = written(name, retry_after_s=20, wall_now=NOW)
    headers = dict(answer.headers)
    hints, places = read_hints(profile, headers, NOW), profile.format.error
    return judge_answer(profile, answer.status, headers, answer.body, hints, NOW, places=places)


def test_every_refusal_is_meant_somehow():
    assert {*MEANT, *WALLS} == {*REFUSALS}


@each(("name", "kind"), [*MEANT.items()])
def test_a_refusal_is_what_it_is_meant_to_be(name, kind):
    outcome = judged(name)
    assert (outcome.kind, outcome.retryable) == (kind, kind is not FINAL)
    assert outcome.account_block_s is None


@each("name", sorted(WALLS))
def test_a_wall_stands_until_its_end(name):
    outcome = judged(name)
    assert (outcome.kind, outcome.retryable) == (FINAL, False)
    assert outcome.account_block_s is not None


@each("name", ["openrouter-free-day", "copilot-week"])
def test_some_say_when_it_ends(name):
    assert judged(name).account_block_s == 20
