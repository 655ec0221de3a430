"""What was found when something was looked at: one line each."""

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
    """One line; a bad one ends with its cure."""

    verdict: Severity
    text: str
