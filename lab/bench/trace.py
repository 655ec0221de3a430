"""A script beside the addon: which files one request runs through, told when mitmdump ends. For `bench.house`."""

import json
import os
import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[2] / "src" / "hivemind_addon")


class Trace:
    """Notes the file of each call, from the second request's head to the end of mitmdump."""

    def __init__(self) -> None:
        self.files: list[str] = []
        """Each differs from the one before it."""
        self.calls = 0
        self._names: dict[str, str] = {}
        self._requests = 0

    def requestheaders(self, _flow) -> None:
        self._requests += 1
        if self._requests == 2:
            sys.setprofile(self._called)

    def done(self) -> None:
        sys.setprofile(None)
        back = sum(1 for before, after in zip(self.files, self.files[2:], strict=False) if before == after)
        told = {"files": len(set(self.files)), "calls": self.calls, "changes": len(self.files) - 1, "back": back}
        Path(os.environ["HIVEMIND_TRACE"]).write_text(json.dumps(told))

    def _called(self, frame, event, _argument) -> None:
        if event != "call":
            return
        path = frame.f_code.co_filename
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = path.removeprefix(_PACKAGE) if path.startswith(_PACKAGE) else ""
        if not name:
            return
        self.calls += 1
        if not self.files or self.files[-1] != name:
            self.files.append(name)


addons = [Trace()]
