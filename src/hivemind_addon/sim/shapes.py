"""The words of single providers, as shapes.yaml has them: refusals, and signs of life before an answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hivemind_addon.formats.base.document import read_yaml
from hivemind_addon.sim.dialect import Headers
from hivemind_addon.sim.dialect.reply import json, rounded_up


class RefusalShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one provider refuses."""

    status: int
    body: object
    headers: dict[str, str] = {}
    content_type: str = "application/json"
    event: object = None
    """What a stream that has begun says in its place; None: it is refused before."""


class WaitShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one provider keeps a client waiting."""

    wait_s: float
    every_s: float
    streamed: str
    """Sent to who asked for a stream."""
    whole: str
    """Sent to others."""


class _Shapes(msgspec.Struct, forbid_unknown_fields=True):
    refusals: dict[str, RefusalShape]
    waits: dict[str, WaitShape]


@dataclass(frozen=True, slots=True)
class WordedAnswer:
    """A refusal as it goes out."""

    status: int
    headers: Headers
    """The content type first."""
    body: bytes
    event: bytes | None = None
    """Of a stream."""


def _load() -> _Shapes:
    file = Path(__file__).with_name("shapes.yaml")
    return msgspec.convert(read_yaml(file.read_bytes(), file), _Shapes)


_SHAPES = _load()
REFUSALS: Mapping[str, RefusalShape] = _SHAPES.refusals
WAITS: Mapping[str, WaitShape] = _SHAPES.waits


def written(name: str, *, retry_after_s: float, wall_now: float) -> WordedAnswer:
    """A refusal of REFUSALS, with its delay. `wall_now`: seconds since the epoch."""
    shape = REFUSALS[name]
    reset_at = rounded_up(wall_now + retry_after_s)
    values = {
        "{retry_after_s}": str(rounded_up(retry_after_s)),
        "{reset_ms}": str(reset_at * 1000),
        "{reset_at}": f"{datetime.fromtimestamp(reset_at, UTC):%Y-%m-%d %H:%M:%S}",
    }

    def filled(text: str) -> str:
        for mark, value in values.items():
            text = text.replace(mark, value)
        return text

    headers = tuple((header, filled(value)) for header, value in shape.headers.items())
    return WordedAnswer(
        shape.status,
        (("content-type", shape.content_type), *headers),
        filled(json(shape.body).decode()).encode(),
        None if shape.event is None else b"data: " + filled(json(shape.event).decode()).encode() + b"\n\n",
    )
