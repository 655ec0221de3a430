"""Captures on disk: mitmproxy flow files that also tell, beside each flow, what the scheduler knew of it.

Any mitmproxy opens them (`mitmweb -r FILE`). Read are also flow files that something else has written (`mitmdump -w`),
HAR, and the JSON of `hivemind capture show --json`.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from mitmproxy import http
from mitmproxy.io.har import request_to_flow

from hivemind_addon.formats.base.json_values import read_object
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.plugins.captures.flow_file import Damaged, dump, read_flows
from hivemind_addon.plugins.captures.foreign import ForeignCalls
from hivemind_addon.plugins.captures.model import (
    Capture,
    CapturedCall,
    ConcurrencyMove,
    LimitSeen,
    NotACapture,
    decode,
    later,
)
from hivemind_addon.plugins.captures.recording import BESIDE_KEY, CALL_KEY, Circumstances
from hivemind_addon.plugins.captures.redact import FlowRedactor
from hivemind_addon.proxy.api.words import failing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from hivemind_addon.kernel.values.ticket import PoolKey

_BOM = b"\xef\xbb\xbf"
_TEXTS = ("text/", "application/json", "application/x-ndjson")
_CURE = "record one with `hivemind run --capture FILE`, or with `mitmdump -w FILE`"


def read_capture(path: Path) -> Capture:
    """Everything that can be read of a file. Raises NotACapture: one line that names the file and the cure."""
    try:
        with path.open("rb") as file:
            if _begins_json(file.read(4)):
                return _read_json(path)
            damage: list[str] = []
            capture = _capture_of(_flows(file.fileno(), damage), damage)
            if damage and not capture.calls:
                raise NotACapture(f"{path}: there is nothing in it that can be read: {damage[0]}; {_CURE}")
            return capture
    except OSError as error:
        raise NotACapture(f"{path}: {error.strerror or error}; {_CURE}") from error


def calls_by_header(path: Path, name: str) -> dict[str, CapturedCall]:
    """The captured calls of a file by a header of their requests; calls without it are left out. Raises OSError."""
    with path.open("rb") as file:
        flows = [flow for flow in _flows(file.fileno(), []) if CALL_KEY in flow.metadata]
    calls = {flow.request.headers.get(name, ""): flow.metadata[CALL_KEY] for flow in flows}
    return {value: msgspec.convert(call, CapturedCall) for value, call in calls.items() if value}


def flows_of(path: Path) -> tuple[list[http.HTTPFlow], Sequence[str]]:
    """The exchanges of a HAR, a flow file or a capture, oldest first, and what of it is damaged. Raises NotACapture."""
    damage: list[str] = []
    try:
        with path.open("rb") as file:
            if _begins_json(file.read(4)):
                flows = [_with_utf8(flow) for flow in _har_flows(path, damage)]
            else:
                flows = list(_flows(file.fileno(), damage))
    except OSError as error:
        raise NotACapture(f"{path}: {error.strerror or error}; {_CURE}") from error
    if damage and not flows:
        raise NotACapture(f"{path}: there is nothing in it that can be read: {damage[0]}; {_CURE}")
    return sorted(flows, key=lambda flow: flow.request.timestamp_start), damage


def strip_capture(path: Path, output: Path) -> int:
    """Copy the flows of a flow file, as far as they can be read, without words and credentials; how many.

    Raises NotACapture, OSError; FileExistsError where `output` is there.
    """
    redactor = FlowRedactor(load_profiles(None).by_name.values(), content=False)
    damage: list[str] = []
    copied = 0
    exclusive = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with path.open("rb") as file, os.fdopen(os.open(output, exclusive, 0o600), "wb") as copy:
        for flow in _flows(file.fileno(), damage):
            kept = {key: flow.metadata[key] for key in (CALL_KEY, BESIDE_KEY) if key in flow.metadata}
            if BESIDE_KEY in kept:
                kept[BESIDE_KEY] = dict(kept[BESIDE_KEY]) | {"content": False}
            copy.write(dump(redactor.clean_state(flow.get_state() | {"metadata": kept})))
            copied += 1
    if not copied:
        output.unlink()
        raise NotACapture(f"{path}: there is no flow in it; {_CURE}")
    return copied


def _flows(file: int, damage: list[str]) -> Iterator[http.HTTPFlow]:
    try:
        for flow in read_flows(file):
            if isinstance(flow, http.HTTPFlow):
                yield flow
    except Damaged as error:
        damage.append(str(error))


def _begins_json(start: bytes) -> bool:
    return start.removeprefix(_BOM).lstrip()[:1] == b"{"


def _read_json(path: Path) -> Capture:
    data = path.read_bytes().removeprefix(_BOM)
    try:
        if "log" not in (read_object(data) or {}):
            return decode(data)
    except NotACapture as error:
        raise NotACapture(f"{path}: {error}; {_CURE}") from error
    damage: list[str] = []
    return _capture_of(_har_flows(path, damage), damage)


def _har_flows(path: Path, damage: list[str]) -> list[http.HTTPFlow]:
    """Its exchanges; one that cannot be read is damage, unless all are."""
    flows: list[http.HTTPFlow] = []
    wrong: list[str] = []
    try:
        entries = json.loads(path.read_bytes().removeprefix(_BOM))["log"]["entries"]
        for number, entry in enumerate(entries, 1):
            try:
                flows.append(request_to_flow(entry))
            except Exception as error:  # noqa: BLE001 - whatever the host's reader stumbles over
                wrong.append(f"exchange {number}: {failing(error)}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        wrong.append(failing(error))
    if wrong and not flows:
        raise NotACapture(f"{path}: this HAR cannot be read: {wrong[0]}; export it again")
    damage += wrong
    return flows


def _with_utf8(flow: http.HTTPFlow) -> http.HTTPFlow:
    """The same with the answer in UTF-8: where no charset is named, mitmproxy writes the text of a HAR in Latin-1."""
    response = flow.response
    if response is not None and response.raw_content is not None:
        try:
            response.raw_content.decode("utf-8")
        except UnicodeDecodeError:
            if response.headers.get("content-type", "").startswith(_TEXTS):
                response.raw_content = response.raw_content.decode("latin-1").encode()
    return flow


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


def join(records: Iterable[tuple[CapturedCall, Circumstances]], damage: Iterable[str] = ()) -> Capture:
    """One capture, whose begin is that of its first recording; recordings that follow it in the file come later.

    Calls of foreign flows bring circumstances that say nothing but their begin.
    """
    records = list(records)
    began_wall = min((beside.began_wall for _, beside in records), default=0.0)
    into: dict[PoolKey, PoolKey] = {}
    for _, beside in records:
        into |= {merge.merged: merge.pool for merge in beside.merges}

    def present(pool: PoolKey) -> PoolKey:
        seen = {pool}
        while (pool := into.get(pool, pool)) not in seen:
            seen.add(pool)
        return pool

    calls: list[CapturedCall] = []
    limits: list[LimitSeen] = []
    moves: list[ConcurrencyMove] = []
    for call, beside in records:
        later_s = beside.began_wall - began_wall
        calls.append(later(replace(call, pool=present(call.pool)), later_s))
        limits += [replace(one, at_s=one.at_s + later_s, pool=present(one.pool)) for one in beside.limits]
        moves += [replace(one, at_s=one.at_s + later_s, pool=present(one.pool)) for one in beside.moves]
    return Capture(
        calls=tuple(sorted(calls, key=lambda call: (call.at_s, call.id))),
        limits=tuple(sorted(limits, key=lambda one: one.at_s)),
        moves=tuple(sorted(moves, key=lambda one: one.at_s)),
        began_wall=began_wall,
        ended_s=max((call.ended_s for call in calls), default=0.0),
        profiles=tuple(sorted({name for _, beside in records for name in beside.profiles})),
        proxy_version=next((beside.proxy_version for _, beside in records if beside.proxy_version), ""),
        content=any(beside.content for _, beside in records),
        learned=tuple({one.key: one for _, beside in reversed(records) for one in beside.learned}.values()),
        damage=tuple(damage),
    )
