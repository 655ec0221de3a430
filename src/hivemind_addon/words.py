"""Numbers as people say them."""

import math


def lasting(seconds: float) -> str:
    """A span of time in its two largest units, rounded up: `3 min`, `2 h 5 min`, `6 d 4 h`."""
    minutes = math.ceil(max(0.0, seconds) / 60)
    days, minutes = divmod(minutes, 24 * 60)
    hours, minutes = divmod(minutes, 60)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
