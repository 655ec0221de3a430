"""What a running proxy tells of itself: one value for `hivemind status`, `hivemind top` and the status page."""

from dataclasses import dataclass, field

from hivemind_addon.core.snapshot import Snapshot
from hivemind_addon.observe.tally import TallyView

QUEUED_TOLD = 250
"""Tickets that wait, of each pool, which a report has: it is made once a second, on the event loop."""


@dataclass(frozen=True, slots=True)
class ProxyView:
    """The process that serves."""

    pid: int
    port: int
    """Of its first listener."""
    listens: tuple[str, ...]
    """`host:port` of every listener."""
    confdir: str
    """Mitmproxy's folder, which holds the CA."""
    hosts: tuple[str, ...]
    """Globs of the hosts (`host` or `host:port`) that its profiles name: what is intercepted."""
    version: str = ""
    """Of this package."""
    began_wall: float = 0.0
    """Epoch seconds of its start."""
    web: str = ""
    """Address of mitmweb's page, without its token; empty: there is none."""
    open_files: int | None = None
    """How many files and connections it may have open; None: as many as there are."""
    unscheduled: tuple[str, ...] = ()
    """Hosts of models that were called and passed by, since no profile claims them or their paths."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything at one instant."""

    version: int
    """Of the schema: it grows when a field changes its meaning or goes."""
    proxy: ProxyView
    snapshot: Snapshot
    tally: TallyView = field(default_factory=TallyView)
    told_wall: float = 0.0
    """Epoch seconds of this report."""
