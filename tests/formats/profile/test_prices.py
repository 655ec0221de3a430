"""Prices of models that no profile names. The figures are of the data of the pinned `genai-prices`."""

import pytest
from msgspec.structs import replace

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.kernel.budget import cost_of
from hivemind_addon.kernel.values.ticket import Usage

PROFILES = load_profiles(None).by_name
WALL = 1_795_000_000.0
"""In November 2026."""
AMAZON, GOOGLE, AZURE = (
    "bedrock-runtime.us-east-1.amazonaws.com",
    "us-east5-aiplatform.googleapis.com",
    "a.openai.azure.com",
)


def priced(profile, model, host=""):
    return PROFILES[profile].price_of(model, WALL, host)


@pytest.mark.parametrize(
    ("profile", "host", "model", "dollars", "guess"),
    [
        ("anthropic", "", "claude-opus-5", (5, 25), ""),
        ("anthropic", "", "claude-fable-5", (10, 50), ""),
        ("anthropic", "", "claude-sonnet-5", (2, 10), ""),
        ("anthropic", "", "claude-opus-9", (4, 20), "claude-opus-5-5"),
        ("anthropic", "", "qwerty-7b", None, ""),
        ("openai", "", "gpt-5.4", (2.5, 15), ""),
        ("openai", "", "gpt-5.5-2026-04-24", (5, 30), ""),
        ("openai", "", "gpt-9", (5, 30), "gpt-5.5"),
        ("gemini", "", "gemini-2.5-pro", (1.25, 10), ""),
        ("gemini", "", "gemini-3-pro", (2, 12), "gemini-3-pro-preview"),
        ("xai", "", "grok-4.5", (2, 6), ""),
        ("deepseek", "", "deepseek-chat", (0.27, 1.1), ""),
        ("mistral", "", "mistral-large-latest", (2, 6), ""),
        ("openrouter", "", "anthropic/claude-opus-5", (5, 25), ""),
        ("openrouter", "", "some/model:free", (0, 0), ""),
        ("bedrock", AMAZON, "us.anthropic.claude-sonnet-4-5-20250929-v1:0", (3.3, 16.5), ""),
        ("bedrock", AMAZON, "amazon.nova-pro-v1:0", (0.8, 3.2), ""),
        ("github-models", "models.github.ai", "openai/gpt-5", (1.25, 10), ""),
        ("vertex", GOOGLE, "claude-sonnet-4-5@20250929", (3, 15), ""),
        ("azure", AZURE, "gpt-5", (1.25, 10), ""),
        ("azure", AZURE, "prod-gpt5", (1.25, 10), "gpt-5"),
        ("azure", AZURE, "deployment-7", None, ""),
        *((local, "", "gpt-5", (0, 0), "") for local in ("ollama", "vllm", "llama-cpp", "lm-studio", "sglang")),
        *((plan, "", "gpt-5", (0, 0), "") for plan in ("codex", "copilot", "code-assist")),
    ],
)
def test_models_have_a_price_or_a_guess_or_none(profile, host, model, dollars, guess):
    price = priced(profile, model, host)
    if dollars is None:
        assert price is None
    else:
        assert (price.input / 1e6, price.output / 1e6, price.guess) == (*dollars, guess)


@pytest.mark.parametrize(
    ("profile", "model", "usage", "asked", "dollars"),
    [
        ("anthropic", "claude-sonnet-4-5", Usage(0, 0, 37_175, 400, cache_write_1h_tokens=37_175), "", 0.22905),
        ("anthropic", "claude-sonnet-4-5", Usage(0, 0, 37_175, 400), "", 0.145407),
        ("anthropic", "claude-sonnet-4-5", Usage(200_000, 0, 0, 1000), "", 0.615),
        ("anthropic", "claude-sonnet-4-5", Usage(0, 200_001, 0, 1000), "", 0.142501),
        ("anthropic", "claude-opus-5", Usage(100_000, 0, 0, 0, tier="batch"), "", 0.25),
        ("anthropic", "claude-opus-5", Usage(100_000, 0, 0, 0, tier="standard"), "batch", 0.5),
        ("openai", "gpt-5", Usage(100_000, 0, 0, 0), "", 0.125),
        ("openai", "gpt-5", Usage(100_000, 0, 0, 0), "auto", 0.125),
        ("openai", "gpt-5", Usage(100_000, 0, 0, 0), "flex", 0.0625),
        ("openai", "gpt-5", Usage(100_000, 0, 0, 0, tier="default"), "priority", 0.125),
        ("openai", "gpt-5", Usage(100_000, 0, 0, 0, tier="priority"), "auto", 0.25),
        ("openai", "gpt-5.5", Usage(300_000, 0, 0, 0, tier="flex"), "", 1.5),
    ],
)
def test_kinds_of_tokens_and_tiers_and_long_prompts_have_their_own_prices(profile, model, usage, asked, dollars):
    assert cost_of(usage, replace(priced(profile, model), tier=asked)) == round(dollars * 1e6)


@pytest.mark.parametrize(
    "name", ["", "/", "@", ":", "-", "a" * 10_000, "\udcff", "..", "claude-" * 500, "9" * 5000, "Ω-5"]
)
def test_no_name_of_a_client_is_too_odd(name):
    price, window = priced("openai-compatible", name), PROFILES["openai-compatible"].window_of(name)
    assert price is None or price.guess
    assert window is None
