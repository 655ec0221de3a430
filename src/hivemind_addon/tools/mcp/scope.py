"""What an agent may do through its server: about itself always, all else where the person who starts it says so.

It is no wall: an agent with a shell can run `hivemind` itself. It is what an agent is offered, so that none steers the
others by a whim.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum

from msgspec import Struct

_ALL = "all"


class Permission(Enum):
    """A word of `--allow`."""

    SUBMIT = "submit"
    """Start a task."""
    BATCH = "batch"
    """Start many tasks at once, with dependencies."""
    BUDGETS = "budgets"
    """Raise, set and reset anybody's budget."""
    CONFIG = "config"
    """Change options of the running proxy."""
    PRIORITY = "priority"
    """Set anybody's priority, upwards, too."""
    SETUP = "setup"
    """Write into the configuration files of agents' tools."""


class BadWord(ValueError):
    """A word that is none of `--allow`; one line that names it and the known ones."""


class ServerScope(Struct, frozen=True):
    """What the person who started the server allows."""

    allowed: frozenset[Permission] = frozenset()
    commands: bool = False
    """Whether tasks may be raw commands, and options such that run programs, name files or lead keys elsewhere."""

    def has(self, needs: frozenset[Permission]) -> bool:
        """Whether one of these is allowed, or none is needed."""
        return not needs or bool(needs & self.allowed)


def read_allow(text: str) -> frozenset[Permission]:
    """The words of `--allow`, between commas or blanks; `all`. Raises BadWord."""
    words = text.lower().replace(",", " ").split()
    return frozenset(one for word in words for one in _meant(word))


def flag(needs: Iterable[Permission]) -> str:
    """What a person has to add to the server's command line."""
    return f"--allow {min(needs, key=list(Permission).index).value}"


def _meant(word: str) -> Iterable[Permission]:
    if word == _ALL:
        return Permission
    known = [one.value for one in Permission]
    if word not in known:
        near = get_close_matches(word, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BadWord(f"{word!r} is nothing to allow; there are {', '.join(known)} and {_ALL}{hint}")
    return (Permission(word),)
