"""Tokens as providers report them, in plain and in streamed answers.

`Usage.input_tokens` is uncached input. OpenAI's formats count cached tokens (read and written) inside
`prompt_tokens` / `input_tokens`, so these are taken out; Anthropic counts them beside it.

A usage that cannot be true counts as none, with all of its numbers: where one is negative, no whole number or larger
than any model takes, and where an answer is said to have had no input. It would be booked, and learned from.
"""

from hivemind_addon.api.ticket import Usage
from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.dialect import UntrueUsageError
from hivemind_addon.proxy.wire.dialects.registry import DIALECTS
from hivemind_addon.proxy.wire.sse import SseEvent
from hivemind_addon.system.json_values import read_object


def usage_in_body(dialect_name: DialectName, body: bytes) -> Usage | None:
    """The usage of a whole answer; None when it reports none that can be read and be true."""
    dialect = DIALECTS[dialect_name]
    top = read_object(body)
    try:
        usage = None if top is None else dialect.usage_of(top)
    except UntrueUsageError:
        return None
    return usage if usage is not None and dialect.had_input(usage) else None


class UsageReader:
    """Collects the usage of one streamed answer."""

    def __init__(self, dialect_name: DialectName) -> None:
        self._dialect = DIALECTS[dialect_name]
        self._told: Usage | None = None
        self._told_output = False

    def __repr__(self) -> str:
        return f"<UsageReader {'final' if self.final else 'open'} {self.usage}>"

    @property
    def usage(self) -> Usage | None:
        """What was reported so far; None: nothing, or what cannot be true."""
        if self._told is not None and self._told_output and not self._dialect.had_input(self._told):
            return None
        return self._told

    @property
    def final(self) -> bool:
        """Whether the output was reported; Anthropic's first event tells only the input."""
        return self._told_output and self.usage is not None

    def feed(self, event: SseEvent) -> None:
        """Look at one event; cheap for those that carry no usage."""
        try:
            told = self._dialect.usage_of_event(event, self._told)
        except UntrueUsageError:
            self._told, self._told_output = None, False
            return
        if told is not None:
            self._told = told[0]
            self._told_output = self._told_output or told[1]
