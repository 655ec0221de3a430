"""A node's copy of what outlives a coordinator: for when it becomes one, and for when the engine is not there.

Until anything of the cluster is known, it is what the process's own files keep.
"""

from collections.abc import Callable

import msgspec

from hivemind_addon.formats.base.json_values import packed_decoder
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.plugins.cluster.messages import Kept

_NEVER = float("inf")
_decode = packed_decoder(Kept)


class KeptCopy:
    """The newest that a node has seen. It asks for a newer one by `fetch`; tell it the answer."""

    def __init__(self, *, fetch: Callable[[], None], fetch_s: float) -> None:
        """`fetch_s`: how soon a newer one is asked for again."""
        self.newest = Kept()
        self._at = 0.0
        """When it was put together, by this node's clock."""
        self._fetch = fetch
        self._fetch_s = fetch_s
        self._is_fetching = False
        self._fetched_at = -_NEVER

    def __repr__(self) -> str:
        return f"<KeptCopy of epoch {self.newest.epoch}, version {self.newest.version}>"

    @property
    def is_of_cluster(self) -> bool:
        """Whether a coordinator has put it together."""
        return self.newest.epoch > 0

    def age_s(self, now: float) -> float:
        """How old it is."""
        return now - self._at

    def put(self, kept: Kept, now: float) -> None:
        """The node's own coordinator has put it together."""
        self.newest, self._at = kept, now

    def add(self, part: Kept, now: float) -> None:
        """A part of what the process's own files keep, of now."""
        before, self._at = self.newest, now
        self.newest = Kept(
            learned=before.learned if part.learned is None else part.learned,
            orders=before.orders if part.orders is None else part.orders,
            standings=part.standings or before.standings,
        )

    def fetch(self) -> None:
        """Ask the engine for the newest."""
        if not self._is_fetching:
            self._is_fetching = True
            self._fetch()

    def look(self, epoch: int, version: int, now: float) -> None:
        """There is such a one: ask for it, but not too often."""
        is_new = (self.newest.epoch, self.newest.version) < (epoch, version)
        if is_new and not self._is_fetching and now >= self._fetched_at + self._fetch_s:
            self._fetched_at = now
            self.fetch()

    def fetched(self, data: bytes | None, age_s: float, now: float) -> str:
        """The engine's answer. Why it cannot be read; empty: it can."""
        self._is_fetching = False
        if data is None:
            return ""
        try:
            kept = _decode(data)
        except msgspec.MsgspecError as error:
            return str(error)
        if (self.newest.epoch, self.newest.version) < (kept.epoch, kept.version):
            self.newest, self._at = kept, now - age_s
        return ""

    def fetch_failed(self) -> None:
        """No answer came."""
        self._is_fetching = False


def on_another_clock(orders: object, scheduler: Scheduler, now: float, shown: float, shows: float) -> object:
    """Orders that were exported by a clock that shows `shown` now, as by one that `shows` something else.

    `scheduler`: a new one, which then has the oddities of what cannot be read among its events.
    """
    if orders is not None:
        scheduler.restore_overrides(orders, now, shown)
    return scheduler.export_overrides(now, shows)
