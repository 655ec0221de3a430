"""Numbers and failures as people say them."""

import math

PRICE_CURE = "write its price under `prices` of a profile (docs/profiles.md), or limit tokens, too"
"""Of a model whose price is not known."""


def lasting(seconds: float) -> str:
    """A span of time in its two largest units, rounded up: `3 min`, `2 h 5 min`, `6 d 4 h`; `unknown` if endless."""
    if math.isinf(seconds):
        return "unknown"
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
    return text[:chars] if text.isascii() else text[:chars].encode(errors="replace").decode()


def about(seconds: float) -> str:
    """A guess at a span of time, as coarse as a guess is, so that it seldom changes: `4 s`, `35 s`, `3 min`."""
    if seconds > 55:
        return lasting(seconds)
    step_s = 1 if seconds <= 10 else 5
    return f"{max(1, math.ceil(seconds / step_s)) * step_s} s"


def count(number: float) -> str:
    """A whole number in at most five characters, three of them digits: `999`, `12.3k`, `1.20M`."""
    for unit, size in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        value = number / size
        if value < 9.995 and unit:
            return f"{value:.2f}{unit}"
        if value < 99.95 and unit:
            return f"{value:.1f}{unit}"
        if value < 999.5:
            return f"{value:.0f}{unit}"
    return f"{number:.0e}"


def dollars(micro_usd: int) -> str:
    """Money in at most seven characters: `$0.26`, `$131.20`, `$1.23k`."""
    usd = micro_usd / 1e6
    return f"${usd:.2f}" if usd < 999.995 else f"${count(usd)}"


def span(seconds: float) -> str:
    """A span of time: `0.4 s`, `12 s`, `3 min`, `2 h 5 min`."""
    if seconds < 0.95:
        return f"{max(0.0, seconds):.1f} s"
    return f"{seconds:.0f} s" if seconds < 99.5 else lasting(seconds)


def several(number: int, what: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """A place in an order: `1st`, `2nd`, `13th`."""
    ends = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ends}"


def short(number: float) -> str:
    """A number in a sentence: `940`, `12.3k`, `4.5M`."""
    for factor, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= factor:
            text = f"{number / factor:.1f}".removesuffix(".0") if number < 100 * factor else f"{number / factor:.0f}"
            return text + letter
    return f"{number:.0f}"


def brief(seconds: float) -> str:
    """`0`, `0.4s`, `12s`, `3m05s`, `2h10m`: short enough for a column."""
    if math.isinf(seconds):
        return "?"
    if seconds < 0.05:
        return "0"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m" + (f"{whole % 60:02}s" if whole % 60 else "")
    if whole < 86_400:
        return f"{whole // 3600}h" + (f"{whole % 3600 // 60:02}m" if whole % 3600 >= 60 else "")
    return f"{whole // 86_400}d" + (f"{whole % 86_400 // 3600}h" if whole % 86_400 >= 3600 else "")


def printable(text: str) -> str:
    """A name out of a request without control characters and other surprises, in one line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def conversation(agent: str, session: str) -> str:
    """An agent, with its session where that tells more: `agent-7`, `claude-cli-3f2a (session 09c1…)`."""
    if not session or session == agent or session.startswith(f"{agent}@"):
        return printable(plain(agent))
    named = session.removeprefix(f"{agent}/")
    return printable(f"{plain(agent)} (session {named if len(named) <= 40 else f'{named[:39]}…'})")


def amount(unit: str, value: int) -> str:
    """Tokens, calls or micro-dollars for people: `1,200,000 tokens`, `40 calls`, `$4.25`, `$0.0031`."""
    if unit != "micro_usd":
        return f"{value:,} {unit[:-1]}{'s' * (value != 1)}"
    usd = value / 1_000_000
    return f"${usd:,.2f}" if usd >= 1 or not value else f"${usd:.4f}"
