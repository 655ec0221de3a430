"""The command that sends a checkpoint's request again."""

import shlex

from hivemind_addon.proxy.checkpoint.model import Checkpoint
from hivemind_addon.proxy.profile.model import DialectName

_SENT = ("content-type", "anthropic-version", "anthropic-beta", "openai-beta", "x-openai-internal-codex-responses-lite")
"""Headers that say how the body is meant."""
_KEYS = {
    DialectName.ANTHROPIC_MESSAGES: "x-api-key: ${ANTHROPIC_API_KEY}",
    DialectName.OPENAI_RESPONSES: "authorization: Bearer ${OPENAI_API_KEY}",
    DialectName.OPENAI_CHAT: "authorization: Bearer ${OPENAI_API_KEY}",
}
_LOGIN_BETA = "oauth-"
"""Of Claude Code's with a subscription: it does not go with a key."""


def curl_command(checkpoint: Checkpoint, file: str = "FILE") -> str:
    """A shell's line; the key is the reader's own, in the variable that it names."""
    words = ["curl", "-sSN", shlex.quote(checkpoint.url)]
    for name in _SENT:
        if value := checkpoint.headers.get(name, "application/json" if name == "content-type" else ""):
            betas = [beta for beta in value.split(",") if not beta.strip().startswith(_LOGIN_BETA)]
            words += ["-H", shlex.quote(f"{name}: {','.join(betas)}")]
    if key := _KEYS.get(DialectName(checkpoint.head.dialect)):
        words += ["-H", f'"{key}"']
    return " ".join([*words, "--data-binary", f"@{file}"])
