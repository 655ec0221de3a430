"""The newest request of each conversation, held until it is to be kept. Pure: it is told the time."""

from collections.abc import Iterator
from dataclasses import dataclass

from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.plugins.contexts.policy import KeepPolicy

Lane = tuple[str, str]
"""Agent and session."""


@dataclass(eq=False, slots=True)
class HeldRequest[T]:
    """One, with what those that it took the place of have spent."""

    lane: Lane
    opening: int
    """Tells the conversations of a lane apart."""
    what: T
    size_bytes: int
    at: float
    """Monotonic instant."""
    spent: Spend
    turns: int = 1
    """Of this conversation, since one was kept."""


class Holding[T]:
    """Those of all conversations; a newer one takes the place of an older one of the same conversation."""

    def __init__(self, policy: KeepPolicy, *, most_bytes: int) -> None:
        self.policy = policy
        self._most_bytes = most_bytes
        self._bytes = 0
        self._held: dict[tuple[Lane, int], HeldRequest[T]] = {}
        """The oldest first."""
        self._openings: dict[Lane, set[int]] = {}

    def __repr__(self) -> str:
        return f"<Holding {self.policy.name}, {len(self._held)} requests, {self._bytes} bytes>"

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, new: HeldRequest[T]) -> Iterator[HeldRequest[T]]:
        """Hold it; what is to be kept at once is taken out: it, or the oldest where there is too much."""
        if (old := self._take(new.lane, new.opening)) is not None:
            new.spent, new.turns = new.spent + old.spent, old.turns + 1
        if self.policy.every and new.turns >= self.policy.every:
            yield new
            return
        self._held[new.lane, new.opening] = new
        self._openings.setdefault(new.lane, set()).add(new.opening)
        self._bytes += new.size_bytes
        while self._bytes > self._most_bytes:
            yield self._take_first()

    def take_lane(self, lane: Lane) -> Iterator[HeldRequest[T]]:
        """All of a lane are to be kept."""
        for opening in tuple(self._openings.get(lane, ())):
            if (held := self._take(lane, opening)) is not None:
                yield held

    def take_due(self, now: float) -> Iterator[HeldRequest[T]]:
        """Those that were silent for long enough."""
        while (due_at := self.next_at()) is not None and due_at <= now:
            yield self._take_first()

    def take_all(self) -> Iterator[HeldRequest[T]]:
        """All of them, the oldest first."""
        while self._held:
            yield self._take_first()

    def next_at(self) -> float | None:
        """When the next one is due; None: there is none."""
        for held in self._held.values():
            return held.at + self.policy.silent_s
        return None

    def _take_first(self) -> HeldRequest[T]:
        lane, opening = next(iter(self._held))
        taken = self._take(lane, opening)
        assert taken is not None
        return taken

    def _take(self, lane: Lane, opening: int) -> HeldRequest[T] | None:
        taken = self._held.pop((lane, opening), None)
        if taken is not None:
            self._bytes -= taken.size_bytes
            openings = self._openings[lane]
            openings.discard(opening)
            if not openings:
                del self._openings[lane]
        return taken
