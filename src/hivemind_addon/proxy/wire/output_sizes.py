"""How long answers are: of one session, or of one model.

likely    mean + 2 mean deviations, as TCP tracks round trips (RFC 6298): what meters reserve
p95       of the newest sizes, so that of a hundred attempts five exceed it: what budgets reserve
"""

import math
from collections import deque

_LEARNING = 0.2
"""Weight of the newest sample."""

ENOUGH = 20
"""With fewer sizes there is no p95."""

SHARE = 0.95


class OutputSizes:
    """Numbers only, bounded."""

    __slots__ = ("_deviation", "_mean", "_newest")

    def __init__(self, *, window: int) -> None:
        """`window`: so many sizes make the p95."""
        self._mean = 0.0
        self._deviation = 0.0
        self._newest: deque[int] = deque(maxlen=window)

    def __repr__(self) -> str:
        return f"<OutputSizes of {len(self._newest)}, about {self._mean:.0f}>"

    @property
    def known(self) -> bool:
        """Whether anything was learned."""
        return bool(self._newest)

    def learn(self, tokens: int) -> None:
        """One answer was so long."""
        if not self._newest:
            self._mean, self._deviation = tokens, tokens / 2
        else:
            self._deviation += _LEARNING * (abs(tokens - self._mean) - self._deviation)
            self._mean += _LEARNING * (tokens - self._mean)
        self._newest.append(tokens)

    @property
    def likely_tokens(self) -> int:
        """Rarely exceeded."""
        return round(self._mean + 2 * self._deviation)

    @property
    def p95_tokens(self) -> int | None:
        """The next answer is longer in five of a hundred cases; None: too little is known.

        Of n sizes the k-th smallest is exceeded by the next one with the probability 1 - k / (n + 1).
        """
        known = len(self._newest)
        if known < ENOUGH:
            return None
        rank = min(known, math.ceil(SHARE * (known + 1)))
        return sorted(self._newest)[rank - 1]
