"""What is measured, how often, and what each figure should be."""

from dataclasses import dataclass, replace

SMALL_BYTES = 1_000
LARGE_BYTES = 600_000
REVERSE = "reverse"
REVERSE_TLS = "reverse, TLS to the provider"
FORWARD_TLS = "forward, TLS"
HTTP2 = "HTTP/2"
"""A forward proxy with TLS again; client and provider speak HTTP/2."""
HTTP2_TO_1 = "HTTP/2, provider HTTP/1.1"
MESSAGES = "Messages"
"""Anthropic's API."""
GEMINI = "Gemini"
"""Streams of `:streamGenerateContent?alt=sse`."""
CONVERSE = "Bedrock"
"""Streams of `/converse-stream`: binary messages, and requests with a signature."""
STREAM_FORMATS = (GEMINI, CONVERSE)
"""They are measured as streams through a reverse proxy only."""


@dataclass(frozen=True)
class Cell:
    """A row of the table: closed loop, `concurrency` kept connections."""

    body_bytes: int
    streamed: bool
    concurrency: int
    requests: int
    """Of a variant in a round."""
    mode: str = REVERSE
    interval_ms: int = 0
    """Between the pieces of a streamed answer."""
    format: str = MESSAGES
    is_first: bool = False
    """Each request is the first of a session and of an agent; else each connection is an agent's."""

    @property
    def name(self) -> str:
        size = f"{self.body_bytes // 1000} KB"
        pace = f" {self.interval_ms} ms apart" if self.interval_ms else ""
        mode = "" if self.mode == REVERSE else f" ({self.mode})"
        api = "" if self.format == MESSAGES else f" ({self.format})"
        first = " of a new agent" if self.is_first else ""
        return f"{size} {'streamed' if self.streamed else 'plain'}{pace}{api}{mode}{first}, {self.concurrency}"

    @property
    def goals(self) -> dict[str, float]:
        """Ours ÷ bare: at most so much, or at least where more is better. Of a paced answer the pace is most of p50."""
        goals = {"cpu_s": 0.80}
        if self.streamed:
            goals["first_p50_s"] = 0.90
        if self.interval_ms:
            return goals | {"transit_p50_s": 1.00}
        if self.body_bytes == SMALL_BYTES and self.concurrency > 1:
            return goals | {"p50_s": 0.65, "requests_per_s": 1.50}
        return goals | {"p50_s": 0.85, "requests_per_s": 1.15}


def route_of(port, host, *, tls=None, connect=None, http2=False):
    """A ROUTE of the load client (lab/bench/client.py)."""
    return {"port": port, "host": host, "tls": tls, "connect": connect, "http2": http2}


@dataclass(frozen=True)
class Plan:
    """A run."""

    cells: tuple[Cell, ...]
    min_rounds: int
    max_s: float
    """No further round begins when it would end after so many seconds."""
    loop_cells: tuple[Cell, ...]
    """That are measured on uvloop, too."""
    loop_rounds: int
    held_flows: int
    """Whose memory is weighed."""
    watched_flows: int
    """That are held while a page and `hivemind top` watch."""
    watched_s: float
    starts: int
    """Of each program, and calls of each command."""
    intakes: int
    """Bodies of 1 MB whose intake is timed."""
    queued: tuple[int, ...]
    decisions: int
    """Turns that are timed for each length of the queue."""
    agents: tuple[int, ...]
    """That the scheduler knows; what a request costs beside so many."""
    growth_requests: int
    cluster_agents: tuple[int, ...]
    """Of a cluster, whose coordinator's cost is measured."""
    cluster_members: int
    cluster_admissions: int
    """For each number of agents."""
    counted_cells: int
    """Of bench.calls."""


def _cells(requests: dict[tuple[int, int], int], mode: str = REVERSE) -> tuple[Cell, ...]:
    return tuple(
        Cell(body_bytes, streamed, concurrency, count, mode)
        for (body_bytes, concurrency), count in requests.items()
        for streamed in (False, True)
    )


def _streams(api: str) -> tuple[Cell, ...]:
    return (
        Cell(SMALL_BYTES, True, 1, 160, format=api),
        Cell(SMALL_BYTES, True, 20, 300, format=api),
        Cell(SMALL_BYTES, True, 20, 40, format=api, interval_ms=20),
    )


def _firsts(requests: dict[tuple[int, int], int]) -> tuple[Cell, ...]:
    return tuple(replace(cell, is_first=True) for cell in _cells(requests))


FULL = Plan(
    cells=(
        *_cells(
            {
                (SMALL_BYTES, 1): 160,
                (SMALL_BYTES, 20): 300,
                (SMALL_BYTES, 200): 500,
                (LARGE_BYTES, 1): 50,
                (LARGE_BYTES, 20): 100,
                (LARGE_BYTES, 200): 250,
            }
        ),
        Cell(SMALL_BYTES, True, 1, 5, interval_ms=20),
        Cell(SMALL_BYTES, True, 20, 60, interval_ms=20),
        Cell(SMALL_BYTES, True, 20, 250, REVERSE_TLS),
        *_cells({(SMALL_BYTES, 1): 100, (SMALL_BYTES, 20): 250, (LARGE_BYTES, 20): 80}, FORWARD_TLS),
        *_cells({(SMALL_BYTES, 20): 250}, HTTP2),
        Cell(LARGE_BYTES, True, 20, 80, HTTP2),
        Cell(SMALL_BYTES, True, 20, 60, HTTP2, interval_ms=20),
        Cell(SMALL_BYTES, True, 20, 250, HTTP2_TO_1),
        *_streams(GEMINI),
        *_streams(CONVERSE),
        *_firsts({(SMALL_BYTES, 1): 100, (SMALL_BYTES, 20): 250, (LARGE_BYTES, 20): 80}),
    ),
    min_rounds=8,
    max_s=330,
    loop_cells=(
        Cell(SMALL_BYTES, False, 1, 150),
        Cell(SMALL_BYTES, False, 20, 250),
        Cell(SMALL_BYTES, True, 20, 250),
        Cell(LARGE_BYTES, False, 20, 80),
        Cell(SMALL_BYTES, True, 20, 250, REVERSE_TLS),
        Cell(SMALL_BYTES, True, 20, 250, FORWARD_TLS),
        Cell(SMALL_BYTES, True, 20, 250, HTTP2),
    ),
    loop_rounds=6,
    held_flows=200,
    watched_flows=500,
    watched_s=12,
    starts=5,
    intakes=60,
    queued=(100, 1_000, 10_000, 50_000),
    decisions=4_000,
    agents=(10, 100, 1_000, 10_000),
    growth_requests=200,
    cluster_agents=(100, 1_000, 10_000),
    cluster_members=100,
    cluster_admissions=6_000,
    counted_cells=10,
)

QUICK = replace(
    FULL,
    cells=(
        *_cells({(SMALL_BYTES, 1): 40, (SMALL_BYTES, 20): 80, (LARGE_BYTES, 20): 30}),
        Cell(SMALL_BYTES, True, 20, 60, FORWARD_TLS),
        Cell(SMALL_BYTES, True, 20, 60, HTTP2),
        *(Cell(SMALL_BYTES, True, 20, 60, format=api) for api in STREAM_FORMATS),
        Cell(SMALL_BYTES, True, 20, 60, is_first=True),
    ),
    min_rounds=2,
    max_s=0,
    loop_cells=(Cell(SMALL_BYTES, True, 20, 60, FORWARD_TLS),),
    loop_rounds=1,
    held_flows=20,
    watched_flows=20,
    watched_s=2,
    starts=1,
    intakes=10,
    queued=(100, 10_000),
    decisions=500,
    agents=(10, 100),
    growth_requests=40,
    cluster_agents=(100, 1_000),
    cluster_members=100,
    cluster_admissions=1_000,
    counted_cells=1,
)
