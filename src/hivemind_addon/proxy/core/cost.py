"""What an attempt takes of its pool, in seconds of the pool's bottleneck: the unit of the order.

A demand of `d` units takes `d / rate` seconds of a meter that refills `rate` units per second, and a call of `s`
seconds takes `s / slots` of a concurrency limit. The largest of these is the attempt's dominant cost: what everybody
else waits longer because of it.
"""

from collections.abc import Iterable

from hivemind_addon.api.ticket import Demand, Dimension
from hivemind_addon.proxy.core.meter import Meter

_FIRST_GUESS_S = 10.0
_NEWEST_WEIGHT = 0.1
_LONGEST_WINDOW_S = 3_600.0
"""Limits per day or longer are no bottleneck of the moment: they are not paced, and their rate says nothing."""
_OF_INPUT = (Dimension.INPUT_TOKENS, Dimension.TOTAL_TOKENS)
_PREFILL_TOKENS_S = 10_000.0
"""How fast a model reads uncached input, where no meter counts it: what a warm prefix saves is at least that time."""


class ServiceTime:
    """How long an attempt is expected to hold its slot: a moving mean over the successful ones."""

    def __init__(self) -> None:
        self.mean_s = _FIRST_GUESS_S
        self._is_guess = True

    def __repr__(self) -> str:
        return f"<ServiceTime {self.mean_s:.2f} s{', a guess' if self._is_guess else ''}>"

    @property
    def is_known(self) -> bool:
        """Whether it was measured at all."""
        return not self._is_guess

    def succeeded(self, duration_s: float) -> None:
        """Learn from one."""
        if self._is_guess:
            self.mean_s, self._is_guess = duration_s, False
        else:
            self.mean_s += _NEWEST_WEIGHT * (duration_s - self.mean_s)


def dominant_s(demand: Demand, meters: Iterable[Meter], *, service_s: float, slots: int) -> float:
    """The dominant cost of a demand that holds a slot for `service_s`. Never negative."""
    longest_s = service_s / max(1, slots)
    for meter in meters:
        if meter.window_s <= _LONGEST_WINDOW_S:
            # More than the whole limit takes the whole limit.
            longest_s = max(longest_s, min(demand.of(meter.dimension), meter.limit) / meter.limit * meter.window_s)
    return max(0.0, longest_s)


def reading_s(input_tokens: int, meters: Iterable[Meter]) -> float:
    """Seconds of the bottleneck that so much uncached input takes."""
    longest_s = input_tokens / _PREFILL_TOKENS_S
    for meter in meters:
        if meter.dimension in _OF_INPUT and meter.window_s <= _LONGEST_WINDOW_S:
            longest_s = max(longest_s, min(input_tokens, meter.limit) / meter.limit * meter.window_s)
    return longest_s
