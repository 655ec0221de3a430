"""A script beside the addon, for `lab.budgets`: the files that one request runs through, and the loaded modules."""

import json
import os
import sys
from pathlib import Path
from types import FrameType

from mitmproxy.http import HTTPFlow

TRACED = "x-trace"
"""The header of the request that is traced."""
PACKAGE = str(Path(__file__).parents[1] / "src" / "hivemind_addon")


class RequestTrace:
    """Records the file of each Python call, from the traced request's head to the next request's."""

    def __init__(self) -> None:
        self.files: list[str] = []
        """Each differs from its predecessor."""
        self._ours: dict[str, bool] = {}

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Start at the traced request, and end at any other."""
        sys.setprofile(self._on_call if TRACED in flow.request.headers else None)

    def done(self) -> None:
        """Write the counts into the file that the environment names."""
        sys.setprofile(None)
        modules = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
        report = {
            "files": len(set(self.files)),
            "changes": len(self.files) - 1,
            "loaded": sorted(file for file in modules if file.startswith(PACKAGE)),
        }
        Path(os.environ["HIVEMIND_TRACE"]).write_text(json.dumps(report), encoding="utf-8")

    def _on_call(self, frame: FrameType, event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not self._ours.setdefault(path, path.startswith(PACKAGE)):
            return
        if not self.files or self.files[-1] != path:
            self.files.append(path)


addons = [RequestTrace()]
