"""Numbers and failures as people say them."""

import math


def lasting(seconds: float) -> str:
    """A span of time in its two largest units, rounded up: `3 min`, `2 h 5 min`, `6 d 4 h`."""
    minutes = math.ceil(max(0.0, seconds) / 60)
    days, minutes = divmod(minutes, 24 * 60)
    hours, minutes = divmod(minutes, 60)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def failing(error: BaseException) -> str:
    """An exception in one line of bounded length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def plain(text: str, chars: int = 300) -> str:
    """A text cut to so many characters, without what is no text (bytes of a client's header)."""
    return text[:chars].encode(errors="replace").decode()


def about(seconds: float) -> str:
    """A guess at a span of time, as coarse as a guess is, so that it seldom changes: `4 s`, `35 s`, `3 min`."""
    if seconds > 55:
        return lasting(seconds)
    step_s = 1 if seconds <= 10 else 5
    return f"{max(1, math.ceil(seconds / step_s)) * step_s} s"
