"""Whether anybody may read what we write on flows, where there is no view: comment, marker, history.

Who may: a file of flows (`-w`); an addon that is neither mitmproxy's nor ours and is handed flows; a filter of
mitmproxy's options that asks for one of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mitmproxy.master import Master

_FLOW_HOOKS = ("requestheaders", "request", "responseheaders", "response", "error", "update")
"""Who has one of these is handed the flows that we write on."""
_KNOWN = ("mitmproxy.", "hivemind_addon.")
"""Packages whose addons read nothing of it by themselves."""
_ASKS_FOR_OURS = re.compile(r"~(comment|marke[dr]|meta)\b")


class FlowReaders:
    """Of one mitmproxy. Asked at the end of every request; looks again only when the answer may have changed."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._addons = 0
        """How many there were at the last look; 0: look again."""
        self._are_there = True

    def __call__(self) -> bool:
        """Whether there are any."""
        addons = len(self._master.addons.lookup)
        if addons != self._addons:
            self._addons, self._are_there = addons, self._asks_an_option() or self._has_an_addon()
        return self._are_there

    def look_again(self) -> None:
        """Options have changed."""
        self._addons = 0

    def _asks_an_option(self) -> bool:
        options = self._master.options
        return bool(options.save_stream_file) or any(
            _ASKS_FOR_OURS.search(str(option.current())) for _, option in options.items()
        )

    def _has_an_addon(self) -> bool:
        return any(
            not type(addon).__module__.startswith(_KNOWN) and any(hasattr(addon, hook) for hook in _FLOW_HOOKS)
            for addon in self._master.addons.lookup.values()
        )
