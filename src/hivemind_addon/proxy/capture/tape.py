"""What one call's attempts are like, taped as they happen: heads, chunks, ends. Bounded."""

from hivemind_addon.api.ticket import Attempt, AttemptResult
from hivemind_addon.proxy.capture.model import MAX_CHUNKS, CapturedAttempt, CapturedChunk


class Tape:
    """Of one call. All instants are monotonic ones; `attempts` tells them since the capture's begin."""

    def __init__(self, arrived_at: float, began_at: float) -> None:
        """`began_at`: of the capture."""
        self._began_at = began_at
        self._free_at = arrived_at
        """When the call began to wait for its next attempt."""
        self._status: int | None = None
        self._head_at: float | None = None
        self._chunks: list[tuple[float, int]] = []
        """Of the running attempt."""
        self._attempts: list[CapturedAttempt] = []

    def __repr__(self) -> str:
        return f"<Tape of {len(self._attempts)} attempts, {len(self._chunks)} chunks of the next>"

    @property
    def attempts(self) -> tuple[CapturedAttempt, ...]:
        """Those that have ended."""
        return tuple(self._attempts)

    @property
    def ended_s(self) -> float:
        """When the last of them did; before any: when the call arrived."""
        return self._free_at - self._began_at

    def head(self, status: int, now: float) -> None:
        """An answer's head came."""
        self._status, self._head_at = status, now
        self._chunks.clear()

    def chunk(self, size: int, now: float) -> None:
        """A piece of its body came."""
        self._chunks.append((now, size))
        if len(self._chunks) > MAX_CHUNKS:
            self._chunks = [_merged(self._chunks[place : place + 2]) for place in range(0, len(self._chunks), 2)]

    def settled(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        """The running attempt ended."""
        sent_at, outcome = attempt.admitted_at, result.outcome
        self._attempts.append(
            CapturedAttempt(
                number=attempt.number,
                at_s=sent_at - self._began_at,
                waited_s=max(0.0, sent_at - self._free_at),
                kind=outcome.kind,
                reason=outcome.reason,
                ended_after_s=now - sent_at,
                status=self._status,
                head_after_s=None if self._head_at is None else self._head_at - sent_at,
                chunks=tuple(CapturedChunk(at - sent_at, size) for at, size in self._chunks),
                usage=result.usage,
                charged=result.charged,
                retry_after_s=outcome.retry_after_s,
            )
        )
        self._free_at = now
        self._status, self._head_at = None, None
        self._chunks.clear()


def _merged(chunks: list[tuple[float, int]]) -> tuple[float, int]:
    """One chunk that comes when the last of them came: no byte is there before its time."""
    return chunks[-1][0], sum(size for _, size in chunks)
