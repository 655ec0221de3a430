"""What is measured, how often, and what each figure should be. The plans themselves are in plan.yaml."""

from dataclasses import dataclass, replace
from pathlib import Path

from hivemind_addon.formats.base.document import read_yaml

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


def _cells(rows: list[dict]) -> tuple[Cell, ...]:
    """Rows of plan.yaml: a cell for each number of connections in `requests`, plain and streamed."""
    return tuple(
        Cell(streamed=streamed, concurrency=concurrency, requests=count, **cell)
        for row in rows
        for cell in ({name: value for name, value in row.items() if name not in ("requests", "streamed")},)
        for concurrency, count in row["requests"].items()
        for streamed in row.get("streamed", (False, True))
    )


def read_plan(name: str) -> dict:
    """A part of plan.yaml."""
    file = Path(__file__).with_name("plan.yaml")
    told = read_yaml(file.read_bytes(), file)[name]
    told |= {key: _cells(told[key]) for key in ("cells", "loop_cells") if key in told}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}


FULL = Plan(**read_plan("full"))
QUICK = replace(FULL, **read_plan("quick"))
