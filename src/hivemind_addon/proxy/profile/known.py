"""What looks like a model call though no profile claims it: told once, so that nobody takes it for scheduled."""

from hivemind_addon.system.patterns import glob_matches, matching_path

MODEL_HOSTS = (
    "generativelanguage.googleapis.com",
    "cloudcode-pa.googleapis.com",
    "aiplatform.googleapis.com",
    "*-aiplatform.googleapis.com",
    "bedrock-runtime*.amazonaws.com",
    "*.openai.azure.com",
    "*.services.ai.azure.com",
    "*.cognitiveservices.azure.com",
    "openrouter.ai",
    "api.mistral.ai",
    "api.groq.com",
    "api.cerebras.ai",
    "api.deepseek.com",
    "api.x.ai",
    "api.z.ai",
    "api.moonshot.ai",
    "api.together.xyz",
    "api.fireworks.ai",
    "api.cohere.com",
    "api.githubcopilot.com",
    "models.github.ai",
    "ollama.com",
    "bedrock-mantle.*.api.aws",
    "aws-external-anthropic.*.api.aws",
)
"""Globs of hosts that serve models (2026-11): those that a user's file may take from their packaged profile, too."""
VENDOR_HOSTS = (
    "*.cursor.sh",
    "*.codeium.com",
    "server.self-serve.windsurf.com",
    "*.windsurf.com",
)
"""Globs of hosts to which agents of one vendor speak in its own way, on its own keys: Cursor, Windsurf (2026-11)."""
_MODEL_PATHS = (
    "*/v1/messages",
    "*/chat/completions",
    "*/v1/completions",
    "*/responses",
    "*:generateContent",
    "*:streamGenerateContent",
    "*:rawPredict",
    "*:streamRawPredict",
    "*/model/*/converse",
    "*/model/*/converse-stream",
    "*/model/*/invoke",
    "*/model/*/invoke-with-response-stream",
    "*/api/chat",
    "*/api/generate",
)
"""Globs of paths that nothing but a model call is posted to."""


def is_model_host(host: str) -> bool:
    """Whether a host, in its normal spelling, serves models."""
    return any(glob_matches(glob, host) for glob in MODEL_HOSTS)


def is_vendor_host(host: str) -> bool:
    """Whether a host, in its normal spelling, is a vendor's own."""
    return any(glob_matches(glob, host) for glob in VENDOR_HOSTS)


def is_shaped_like_a_call(method: str, path: str) -> bool:
    """Whether a request looks like a model call. `path` as it came."""
    return method.upper() == "POST" and matching_path(_MODEL_PATHS, path) is not None
