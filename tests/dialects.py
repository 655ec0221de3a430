"""The packaged wire formats, ready to read."""

from hivemind_addon.formats.profile.formats import packaged_formats
from hivemind_addon.formats.wire.dialect import dialect_named

ANTHROPIC = dialect_named("anthropic")
CHAT = dialect_named("openai-chat")
RESPONSES = dialect_named("openai-responses")
OLLAMA = dialect_named("ollama")
GEMINI = dialect_named("gemini")
CODE_ASSIST = dialect_named("code-assist")
COHERE = dialect_named("cohere")
ALL = tuple(map(dialect_named, packaged_formats()))
