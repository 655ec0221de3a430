"""When conversations are kept."""

import math
import re
from dataclasses import dataclass

IDLE_S = 30.0
"""A session that was silent for so long is idle."""
OVER_S = 3600.0
"""A session that was silent for so long has ended."""
FORMS = "`turn`, `every:N`, `idle`, `end` or `off`"
_EVERY = re.compile(r"every\s*:\s*([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """A conversation's newest request is kept after so many requests, and after so much silence."""

    name: str
    """For people."""
    every: int = 0
    """0: however many there are."""
    silent_s: float = OVER_S


def parse_policy(text: str) -> KeepPolicy | None:
    """One of `FORMS`; None: none is kept. Raises ValueError."""
    match text.strip().lower():
        case "off":
            return None
        case "turn":
            return KeepPolicy("turn", every=1, silent_s=math.inf)
        case "idle":
            return KeepPolicy("idle", silent_s=IDLE_S)
        case "end":
            return KeepPolicy("end")
        case other:
            found = _EVERY.fullmatch(other)
            if found is None:
                raise ValueError(text)
            return KeepPolicy(f"every {int(found[1])}", every=int(found[1]))
