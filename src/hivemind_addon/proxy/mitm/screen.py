"""What a person looks at, in mitmweb or the console: kept up to date, and small. mitmdump has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hivemind_addon.proxy.mitm.retention import Retention
from hivemind_addon.proxy.runtime.beat import Beat

if TYPE_CHECKING:
    from mitmproxy.addons.view import View
    from mitmproxy.flow import Flow

    from hivemind_addon.proxy.mitm.intake import Intake


class Screen:
    """Joins mitmproxy's view and the scheduler: what it does is shown there, what a person does there is heard."""

    def __init__(self, view: View, intake: Intake) -> None:
        self._intake = intake
        self._retention = Retention(view, lambda: intake.settings.keep)
        self._beat = Beat([intake.annotator.beat, self._retention.beat])
        intake.annotator.wake = self._beat.wake
        view.sig_view_update.connect(self._touched)  # these know us weakly: a reloaded script's screen takes over
        view.sig_view_remove.connect(self._removed)

    def __repr__(self) -> str:
        return f"<Screen {self._beat!r}>"

    def came(self, flow: Flow) -> None:
        """A flow came through the proxy."""
        self._retention.came(flow)
        self._beat.wake()

    def stop(self) -> None:
        """Nothing is drawn any more."""
        self._beat.stop()

    def _touched(self, flow: Flow) -> None:
        """A person may have pressed Abort or Resume."""
        self._intake.nudge(flow)

    def _removed(self, flow: Flow, index: int) -> None:
        """A person has deleted a flow; interfaces kill it before."""
        del index
        self._intake.nudge(flow)
