"""What is measured, and how often."""

from dataclasses import dataclass, replace

SMALL_BYTES = 1_000
LARGE_BYTES = 600_000
REVERSE = "reverse"
FORWARD_TLS = "forward, TLS"
HTTP2 = "HTTP/2"
"""A forward proxy with TLS again; the client speaks HTTP/2."""


@dataclass(frozen=True)
class Cell:
    """One row of the table: closed loop, `concurrency` keep-alive connections, each its own agent."""

    body_bytes: int
    streamed: bool
    concurrency: int
    requests: int
    """Of one variant in one round."""
    mode: str = REVERSE
    interval_ms: int = 0
    """Between the pieces of a streamed answer."""

    @property
    def name(self) -> str:
        size = f"{self.body_bytes // 1000} KB"
        pace = f" {self.interval_ms} ms apart" if self.interval_ms else ""
        mode = "" if self.mode == REVERSE else f" ({self.mode})"
        return f"{size} {'streamed' if self.streamed else 'plain'}{pace}{mode}, {self.concurrency}"


@dataclass(frozen=True)
class Plan:
    """One run."""

    cells: tuple[Cell, ...]
    min_rounds: int
    max_s: float
    """No further round begins when it would end after so many seconds."""
    held_flows: int
    intakes: int
    """Bodies of 1 MB whose intake is timed."""
    queued: tuple[int, ...]
    decisions: int
    """Turns that are timed for each length of the queue."""


def _cells(requests: dict[tuple[int, int], int]) -> tuple[Cell, ...]:
    return tuple(
        Cell(body_bytes, streamed, concurrency, count)
        for (body_bytes, concurrency), count in requests.items()
        for streamed in (False, True)
    )


FULL = Plan(
    cells=(
        *_cells(
            {
                (SMALL_BYTES, 1): 200,
                (SMALL_BYTES, 20): 400,
                (SMALL_BYTES, 200): 600,
                (LARGE_BYTES, 1): 40,
                (LARGE_BYTES, 20): 80,
                (LARGE_BYTES, 200): 200,
            }
        ),
        Cell(SMALL_BYTES, True, 20, 80, interval_ms=20),
        Cell(SMALL_BYTES, False, 20, 300, mode=FORWARD_TLS),
        Cell(SMALL_BYTES, True, 20, 300, mode=FORWARD_TLS),
    ),
    min_rounds=3,
    max_s=240,
    held_flows=200,
    intakes=60,
    queued=(100, 1_000, 10_000, 50_000),
    decisions=4_000,
)

QUICK = replace(
    FULL,
    cells=(
        *_cells({(SMALL_BYTES, 1): 60, (SMALL_BYTES, 20): 120, (SMALL_BYTES, 200): 200, (LARGE_BYTES, 20): 30}),
        Cell(SMALL_BYTES, True, 20, 80, mode=FORWARD_TLS),
    ),
    min_rounds=1,
    max_s=12,
    held_flows=40,
    intakes=10,
    queued=(100, 1_000, 10_000),
    decisions=500,
)
