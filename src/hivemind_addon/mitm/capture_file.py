"""Captures on disk: mitmproxy flow files that also tell, beside each flow, what the scheduler knew of it.

Any mitmproxy opens them (`mitmweb -r FILE`). Read are also flow files that something else has written (`mitmdump -w`),
HAR, and the JSON of `hivemind capture show --json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from mitmproxy import exceptions, http
from mitmproxy.io import FlowReader

from hivemind_addon.capture.joined import join
from hivemind_addon.capture.model import Capture, CapturedCall, NotACapture, decode
from hivemind_addon.capture.recording import Circumstances
from hivemind_addon.mitm.flow_file import Damaged, read_flows
from hivemind_addon.mitm.foreign import ForeignCalls
from hivemind_addon.profile.load import load_profiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CALL_KEY = "hivemind_call"
BESIDE_KEY = "hivemind_capture"
_CURE = "record one with `hivemind run --capture FILE`, or with `mitmdump -w FILE`"


def metadata(call: CapturedCall, beside: Circumstances) -> dict[str, Any]:
    """What a captured flow carries."""
    return {CALL_KEY: msgspec.to_builtins(call), BESIDE_KEY: msgspec.to_builtins(beside)}


def read_capture(path: Path) -> Capture:
    """Everything that can be read of a file. Raises NotACapture: one line that names the file and the cure."""
    try:
        with path.open("rb") as file:
            start = file.read(4).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            if start == b"{":
                return _read_json(path)
            damage: list[str] = []
            capture = _capture_of(_flows(file.fileno(), damage), damage)
            if damage and not capture.calls:
                raise NotACapture(f"{path}: there is nothing in it that can be read: {damage[0]}; {_CURE}")
            return capture
    except OSError as error:
        raise NotACapture(f"{path}: {error.strerror or error}; {_CURE}") from error


def _flows(file: int, damage: list[str]) -> Iterator[http.HTTPFlow]:
    try:
        for flow in read_flows(file):
            if isinstance(flow, http.HTTPFlow):
                yield flow
    except Damaged as error:
        damage.append(str(error))


def _read_json(path: Path) -> Capture:
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        if "log" not in msgspec.json.decode(data, type=dict[str, msgspec.Raw]):
            return decode(data)
        with path.open("rb") as file:
            return _capture_of([flow for flow in FlowReader(file).stream() if isinstance(flow, http.HTTPFlow)], ())
    except (NotACapture, msgspec.MsgspecError) as error:
        raise NotACapture(f"{path}: {error}; {_CURE}") from error
    except exceptions.FlowReadException as error:
        raise NotACapture(f"{path}: this HAR cannot be read: {error.__cause__ or error}; export it again") from error


def _capture_of(flows: Iterable[http.HTTPFlow], damage: Iterable[str]) -> Capture:
    records: list[tuple[CapturedCall, Circumstances]] = []
    foreign: list[http.HTTPFlow] = []
    unread = 0
    for flow in flows:
        if CALL_KEY not in flow.metadata:
            foreign.append(flow)
            continue
        try:
            records.append(
                (
                    msgspec.convert(flow.metadata[CALL_KEY], CapturedCall),
                    msgspec.convert(flow.metadata.get(BESIDE_KEY, {}), Circumstances),
                )
            )
        except msgspec.ValidationError:
            unread += 1
    if foreign:
        records += ForeignCalls(load_profiles(None)).read(foreign)
    told = (f"{unread} calls could not be understood",) if unread else ()
    return join(records, (*damage, *told))
