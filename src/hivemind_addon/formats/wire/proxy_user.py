"""What the name and password of a proxy user say: who an agent is, and what it asks of the proxy. Pure."""

import hashlib
import hmac
import re
from dataclasses import dataclass

from hivemind_addon.kernel.values.ticket import Delivery, Priority

_MAX_CHARS = 80
_MAX_DIGITS = 5
"""Of seconds: a day has 86,400."""
_HASH_CHARS = 8
MAX_HEADER_CHARS = 16_384
WORD_BREAK = re.compile(r"[,+.\s]+")
"""Between the words of a proxy's password."""
_TASK_WORD = "task-"
DELIVERIES = {delivery.value: delivery for delivery in Delivery}
_PRIORITIES = {priority.name.lower(): priority for priority in Priority}


@dataclass(frozen=True, slots=True)
class ProxyWords:
    """What an agent asks for in the password of its proxy address: `http://agent-7:whole@host:8080`."""

    delivery: Delivery | None = None
    """None: whatever the profile says."""
    priority: Priority | None = None
    """`prio-low` and the like; None: normal."""
    patience_s: float | None = None
    """How long it waits for an answer: `wait-3600`; None: as its requests or the profile say."""
    task: str = ""
    """What it calls the task that its requests are part of: `task-ID`, in its own case."""


_NO_WORDS = ProxyWords()


def proxy_words(password: str) -> ProxyWords:
    """The words of a proxy password, between `,` `+` `.` and blanks; the last of a kind counts.

    Other words mean nothing: a proxy that demands a password gets its own one there.
    """
    if not password:
        return _NO_WORDS
    as_given = WORD_BREAK.split(password)
    words = [word.lower() for word in as_given]
    chosen = [DELIVERIES[word] for word in words if word in DELIVERIES]
    priorities = [priority_of(word.removeprefix("prio-")) for word in words if word.startswith("prio-")]
    asked = [priority for priority in priorities if priority is not None]
    waits = [word.removeprefix("wait-") for word in words if word.startswith("wait-")]
    patience_s = [int(wait) for wait in waits if wait.isascii() and wait.isdecimal() and 0 < len(wait) <= _MAX_DIGITS]
    tasks = [
        given[len(_TASK_WORD) :] for given, word in zip(as_given, words, strict=True) if word.startswith(_TASK_WORD)
    ]
    return ProxyWords(
        delivery=chosen[-1] if chosen else None,
        priority=asked[-1] if asked else None,
        patience_s=patience_s[-1] if patience_s and patience_s[-1] else None,
        task=next((task for task in reversed(tasks) if task), ""),
    )


def given_id(text: str) -> str:
    """An id that a client gives to what it does: its own, cleaned as names are; empty where it gives none."""
    return clean(text.strip()[:MAX_HEADER_CHARS]) if text else ""


def priority_of(word: str) -> Priority | None:
    """The class that a word names; None: none."""
    return _PRIORITIES.get(word.strip().lower())


def short_hash(text: str, chars: int = _HASH_CHARS, key: bytes = b"") -> str:
    """Tells names apart that look alike once they are cut. `key`: only those who have it can compute the hash."""
    data = text.encode("utf-8", "surrogatepass")
    return (hmac.new(key, data, hashlib.sha256) if key else hashlib.sha256(data)).hexdigest()[:chars]


def clean(text: str) -> str:
    """Fit for logs. What is changed gets a hash of what it was, so that different names stay different."""
    if text.isprintable() and len(text) <= _MAX_CHARS:
        return text
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return f"{printable[: _MAX_CHARS - _HASH_CHARS - 1]}~{short_hash(text)}"
