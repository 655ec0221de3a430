"""mitmproxy's view, in mitmweb or the console: kept up to date, and small. mitmdump has none.

Finished flows leave it, the oldest first, beyond a number and a size: a night of agents fits into memory.

What a person may come back for stays: held and running flows, replays, and whatever a person marked or commented.
Flows that did not come through the proxy (from a file, duplicates) are a person's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mitmproxy import ctx, http

from hivemind_addon.proxy.gate.interfaces.annotation import SIZE_KEY, is_touched
from hivemind_addon.proxy.run.refresh_timer import REFRESHES_PER_S, RefreshTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mitmproxy.addons.view import View
    from mitmproxy.flow import Flow

    from hivemind_addon.proxy.gate.proxy import Proxy
    from hivemind_addon.proxy.gate.settings import Keep

MOST_PER_REFRESH = 100
"""Taking one out costs mitmweb a message to each browser, and the console a redraw."""


class Retention:
    """Takes finished flows out of a view."""

    def __init__(self, view: View, keep: Callable[[], Keep | None]) -> None:
        """`keep` is asked each time: the option may change."""
        self._view = view
        self._keep = keep
        self._came: set[str] = set()
        """Ids of the flows that came through the proxy."""
        self._rest = 0
        self._is_dirty = False

    def __repr__(self) -> str:
        return f"<Retention of {len(self._came)} flows>"

    def came(self, flow: Flow) -> None:
        """A flow came through the proxy."""
        self._came.add(flow.id)
        self._is_dirty = True

    def refresh(self) -> bool:
        """Look once a second whether there are too many. True: there may be more to do."""
        if self._rest > 0:
            self._rest -= 1
        elif self._is_dirty and not self._sweep():
            self._rest = REFRESHES_PER_S - 1
            self._is_dirty = any(self._is_running(flow) for flow in self._ours())
        return self._is_dirty

    def _sweep(self) -> bool:
        """Take some out. True: there are more."""
        keep = self._keep()
        if keep is None:
            return False
        flows = list(self._ours())
        self._came.intersection_update([flow.id for flow in flows])
        excess = 0 if keep.flows is None else len(flows) - keep.flows
        excess_bytes = 0 if keep.size_bytes is None else sum(map(size_of, flows)) - keep.size_bytes
        taken = 0
        for flow in flows:
            if excess <= 0 and excess_bytes <= 0:
                return False
            if taken == MOST_PER_REFRESH:
                return True
            if self._is_running(flow) or flow.is_replay or is_touched(flow):
                continue
            excess -= 1
            excess_bytes -= size_of(flow)
            ctx.master.commands.call("view.flows.remove", [flow])
            self._came.discard(flow.id)
            taken += 1
        return False

    def _ours(self) -> Iterator[http.HTTPFlow]:
        """The flows that came through the proxy and are still there, oldest first."""
        for flow in self._view.resolve("@all"):
            if flow.id in self._came and isinstance(flow, http.HTTPFlow):
                yield flow

    @staticmethod
    def _is_running(flow: http.HTTPFlow) -> bool:
        """Whether more is to come of it; mitmproxy forgets to say so of some that ended with their client."""
        return flow.intercepted or (flow.live and not flow.client_conn.timestamp_end)


def size_of(flow: http.HTTPFlow) -> int:
    """Bytes of its bodies, or frames."""
    response = flow.response
    frames: int = flow.metadata.get(SIZE_KEY, 0)
    return len(flow.request.raw_content or b"") + (len(response.raw_content or b"") if response else 0) + frames


class ViewSync:
    """Joins mitmproxy's view and the scheduler: what it does is shown there, what a person does there is heard."""

    def __init__(self, view: View, proxy: Proxy) -> None:
        self._proxy = proxy
        self._retention = Retention(view, lambda: proxy.settings.current.keep)
        self._timer = RefreshTimer([proxy.annotator.refresh, self._retention.refresh])
        proxy.annotator.wake = self._timer.wake
        view.sig_view_update.connect(self._touched)  # these know us weakly: a reloaded script's sync takes over
        view.sig_view_remove.connect(self._removed)

    def __repr__(self) -> str:
        return f"<ViewSync {self._timer!r}>"

    def came(self, flow: Flow) -> None:
        """A flow came through the proxy."""
        self._retention.came(flow)
        self._timer.wake()

    def stop(self) -> None:
        """Nothing is drawn any more."""
        self._timer.stop()

    def _touched(self, flow: Flow) -> None:
        """A person may have pressed Abort or Resume."""
        self._proxy.nudge(flow)

    def _removed(self, flow: Flow, index: int) -> None:
        """A person has deleted a flow; interfaces kill it before."""
        del index
        self._proxy.nudge(flow)
