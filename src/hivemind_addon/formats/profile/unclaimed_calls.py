"""What looks like a model call though no profile claims it: told once, so that nobody takes it for scheduled."""

from hivemind_addon.formats.base.patterns import glob_matches, matching_path
from hivemind_addon.formats.profile.load import load_profiles

_UNCLAIMED = ("ollama.com", "bedrock-mantle.*.api.aws", "aws-external-anthropic.*.api.aws")
"""Globs of hosts that serve models and have no packaged profile (2026-11)."""
VENDOR_HOSTS = ("*.cursor.sh", "*.codeium.com", "*.windsurf.com")
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
    """Whether a host, in its normal spelling, serves models: a user's file may have taken it from its profile."""
    return load_profiles(None).match_host(host, 443) is not None or any(glob_matches(glob, host) for glob in _UNCLAIMED)


def is_vendor_host(host: str) -> bool:
    """Whether a host, in its normal spelling, is a vendor's own."""
    return any(glob_matches(glob, host) for glob in VENDOR_HOSTS)


def is_shaped_like_a_call(method: str, path: str) -> bool:
    """Whether a request looks like a model call. `path` as it came."""
    return method.upper() == "POST" and matching_path(_MODEL_PATHS, path) is not None
