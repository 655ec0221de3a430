"""What attempts took, added up."""

from dataclasses import dataclass

from hivemind_addon.kernel.values.events import AttemptEnded
from hivemind_addon.kernel.values.ticket import OutcomeKind, Usage


@dataclass(slots=True)
class Used:
    """What attempts took."""

    attempts: int = 0
    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reported: bool = False
    tokens: int = 0
    """As booked, like the money."""
    micro_usd: int = 0
    wasted_tokens: int = 0
    """Of these, what came to nothing."""
    wasted_micro_usd: int = 0

    def add(self, other: "Used") -> None:
        """What others took, too."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reported = bool(self.reported)

    def add_attempt(self, event: AttemptEnded) -> None:
        """What an attempt took."""
        usage, spend = event.usage, event.spend
        self.attempts += 1
        if usage is not None:
            self.input_tokens += usage.input_tokens
            self.cache_read_tokens += usage.cache_read_tokens
            self.cache_write_tokens += usage.cache_write_tokens
            self.output_tokens += usage.output_tokens
            self.reported = self.reported or usage.reported
        self.tokens += spend.tokens
        self.micro_usd += spend.micro_usd
        if event.outcome.kind is not OutcomeKind.SUCCESS:
            self.wasted_tokens += spend.tokens
            self.wasted_micro_usd += spend.micro_usd

    @property
    def usage(self) -> Usage:
        """The tokens as reported or counted."""
        return Usage(
            self.input_tokens, self.cache_read_tokens, self.cache_write_tokens, self.output_tokens, self.reported
        )
