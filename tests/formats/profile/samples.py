"""Samples of providers: tests/formats/wire/data/<profile>/samples.yaml. What one is and gives, test_providers.py says."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hivemind_addon.formats.base.document import read_document
from tests.formats.wire.eventstream import eventstream_message

DATA = Path(__file__).parents[1] / "wire" / "data"
MARKS = {"recorded", "documented", "simulated"}
"""Of a capture, a third party's included; of the provider's documentation or its clients' sources; made up."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample, and what is expected of it."""

    profile: str
    told: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.profile}: {self.told['says']}"

    @property
    def path(self) -> str:
        return self.told["path"]

    @property
    def status(self) -> int:
        return self._file.get("status", self.told.get("status", 200))

    @property
    def headers(self) -> Mapping[str, str]:
        headers = self._file.get("headers", self.told.get("headers", {}))
        return {name.lower(): str(value) for name, value in headers.items()}

    @property
    def body(self) -> bytes:
        """Text as it is, JSON written out, `messages` in Amazon's framing."""
        if messages := self.told.get("messages"):
            return b"".join(map(_message, messages))
        if "file" in self.told and not self._file:
            return (DATA / self.profile / self.told["file"]).read_bytes()
        body = self._file.get("body", self.told.get("body", ""))
        return body.encode() if isinstance(body, str) else json.dumps(body).encode()

    @property
    def gives(self) -> Mapping[str, Any]:
        return self.told["gives"]

    @property
    def _file(self) -> Mapping[str, Any]:
        file = self.told.get("file", "")
        return json.loads((DATA / self.profile / file).read_text()) if file.endswith(".json") else {}


def _message(told: Mapping[str, Any]) -> bytes:
    """`{event: name, payload: …}` or `{exception: name, payload: …}`."""
    ((kind, name),) = ((kind, name) for kind, name in told.items() if kind != "payload")
    headers = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
    return eventstream_message(headers, json.dumps(told["payload"]).encode())


def samples(kind: str) -> Iterator[Sample]:
    """Those of a kind (`answers`, `streams`, `requests`), of all providers; each inherits what is said above them."""
    for file in sorted(DATA.glob("*/samples.yaml")):
        document = dict(read_document(file, cure_when_empty="write samples", packaged=True))
        above = {name: document[name] for name in ("path", "host", "from") if name in document}
        for told in document.get(kind, ()):
            yield Sample(file.parent.name, {**above, **told})
