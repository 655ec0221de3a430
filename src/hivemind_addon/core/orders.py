"""What persons ordered that stands until it is taken back: pauses, caps, priorities.

Each order is a glob and a value. The newest that matches counts, and holds for pools and agents that come later, too.
An order that takes back (resume, no cap, as asked) is a rule like others where an older one would still match.
"""

from collections.abc import Callable, Iterator

from hivemind_addon.core.command import names_agent, names_pool
from hivemind_addon.core.snapshot import PriorityView
from hivemind_addon.core.ticket import PoolKey, Priority


class _Rules[Subject, Value]:
    """Globs and what was ordered for what they match, the newest first."""

    def __init__(self, matches: Callable[[str, Subject], bool]) -> None:
        self._matches = matches
        self._rules: list[tuple[str, Value | None]] = []

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __iter__(self) -> Iterator[tuple[str, Value | None]]:
        return iter(self._rules)

    def put(self, glob: str, value: Value | None) -> None:
        """Order it; None takes back."""
        older = [] if glob == "*" else [rule for rule in self._rules if rule[0] != glob]
        self._rules = [(glob, value), *older]
        while self._rules and self._rules[-1][1] is None:
            self._rules.pop()  # there is nothing older that it would take back

    def of(self, subject: Subject) -> Value | None:
        """What counts for one; None: nothing was ordered."""
        return next((value for glob, value in self._rules if self._matches(glob, subject)), None)


class Orders:
    """All pools' and agents'."""

    def __init__(self) -> None:
        self._pauses: _Rules[PoolKey, bool] = _Rules(names_pool)
        self._caps: _Rules[PoolKey, int] = _Rules(names_pool)
        self._priorities: _Rules[str, Priority] = _Rules(names_agent)

    def __repr__(self) -> str:
        return f"<Orders {list(self._pauses)} {list(self._caps)} {list(self._priorities)}>"

    def pause(self, glob: str, *, paused: bool) -> None:
        """Admit nothing in these pools, or again."""
        self._pauses.put(glob, paused or None)

    def cap(self, glob: str, limit: int | None) -> None:
        """Let these pools have at most so many attempts in flight."""
        self._caps.put(glob, limit)

    def prefer(self, glob: str, priority: Priority | None) -> None:
        """Serve these agents in a class, whatever they ask for."""
        self._priorities.put(glob, priority)

    def is_paused(self, key: PoolKey) -> bool:
        """Whether nothing of a pool goes."""
        return bool(self._pauses.of(key))

    def pauses_for(self, glob: str) -> bool:
        """Whether a pause with this glob stands, or any if it is `*`: pools that come would meet it."""
        return any(paused and glob in ("*", known) for known, paused in self._pauses)

    def cap_of(self, key: PoolKey) -> int | None:
        """What a pool's concurrency limit may be at most; None: what it learns."""
        return self._caps.of(key)

    def priority_of(self, agent: str, asked: Priority) -> Priority:
        """The class of an agent's ticket that asks for one."""
        ordered = self._priorities.of(agent) if self._priorities else None
        return asked if ordered is None else ordered

    def inherit(self, key: PoolKey, merged: PoolKey) -> None:
        """A pool was merged into another one: what held for it holds for both, where that is stricter."""
        if self.is_paused(merged) and not self.is_paused(key):
            self.pause(str(key), paused=True)
        cap, theirs = self.cap_of(key), self.cap_of(merged)
        if theirs is not None and (cap is None or theirs < cap):
            self.cap(str(key), theirs)

    @property
    def priorities(self) -> tuple[PriorityView, ...]:
        """The priorities that were set, the newest first."""
        return tuple(
            PriorityView(agent=glob, priority=priority) for glob, priority in self._priorities if priority is not None
        )
