"""What was found when something was looked at: one line each, with an id that stays and a cure."""

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """What a finding means."""

    GOOD = "ok"
    NOTE = "note"
    """Nothing is wrong for sure, or it could not be looked at."""
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    verdict: Severity
    id: str
    """The same for the same finding in all versions, for programs: `proxy.none`."""
    said: str
    """What was found."""
    cure: str = ""
    """What to do; every bad one has it."""

    @property
    def text(self) -> str:
        """One line for people, with its cure."""
        return f"{self.said}; {self.cure}" if self.cure else self.said
