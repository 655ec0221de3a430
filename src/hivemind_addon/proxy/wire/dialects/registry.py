"""All wire formats. A new one has its file beside this one, its name in `DialectName` and its line here."""

from collections.abc import Mapping

from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.dialect import Dialect
from hivemind_addon.proxy.wire.dialects import anthropic_messages, ollama, openai_chat, openai_responses

DIALECTS: Mapping[DialectName, Dialect] = {
    module.DIALECT.name: module.DIALECT for module in (anthropic_messages, openai_chat, openai_responses, ollama)
}
