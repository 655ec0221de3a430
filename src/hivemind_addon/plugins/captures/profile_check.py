"""What a profile says, and what it understands of recorded exchanges: read by the parsers that the proxy itself uses.

Nothing here is a secret or a word of a conversation: credentials are hashed, of words only the number is told.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base.patterns import matching_path
from hivemind_addon.formats.profile.format import WireFormat
from hivemind_addon.formats.profile.formats import packaged_formats
from hivemind_addon.formats.profile.load import is_call, load_profile
from hivemind_addon.formats.wire.answer import Phase
from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
from hivemind_addon.formats.wire.decoding import DecodeError, decode
from hivemind_addon.formats.wire.description import describe_request
from hivemind_addon.formats.wire.dialect import EventClass, event_name
from hivemind_addon.formats.wire.error import error_in_body
from hivemind_addon.formats.wire.estimate import Estimator
from hivemind_addon.formats.wire.tokenizer import Tokenizer
from hivemind_addon.formats.wire.transcript import answer_of
from hivemind_addon.kernel.values.ticket import CallKind, OutcomeKind, PoolKey, Reading, Usage, WindowReading
from hivemind_addon.plugins.captures.foreign import StoppedClock
from hivemind_addon.plugins.captures.recording import unnamed
from hivemind_addon.proxy.host.flow_parts import destination, peer_of, plain_headers, plain_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mitmproxy import http

    from hivemind_addon.formats.profile.load import Profiles
    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.formats.wire.conversation_parts import Transcript
    from hivemind_addon.formats.wire.dialect import Dialect

_READ_BYTES = 32 * 1024 * 1024


class CheckedFormat(Struct, frozen=True):
    """A wire format of a profile."""

    paths: str
    """Path glob; empty: all that no other one has."""
    preset: str
    """The packaged format that it is, or that it changes; empty: it is all the profile's own."""
    changed: Mapping[str, Any]
    """Key (`usage.input`) → value, where it differs from the preset, or from the defaults."""


class CheckedProfile(Struct, frozen=True):
    """What a profile says."""

    name: str
    file: str
    extends: tuple[str, ...]
    """The profile that it extends, the one that this extends, and so on."""
    hosts: tuple[str, ...]
    paths: tuple[str, ...]
    exclude_paths: tuple[str, ...]
    reverse_paths: tuple[str, ...]
    websocket: str
    """What becomes of a WebSocket on one of `paths`: `turns`, `refuse` or `tunnel`."""
    upstreams: Mapping[str, str]
    """Endpoints that are equal: name → URL."""
    formats: tuple[CheckedFormat, ...]
    model_paths: tuple[str, ...]
    account: Mapping[str, tuple[str, ...]]
    """Where it is found: `response_account_headers`, `account` of the request, `credentials` (as a hash)."""
    sessions: tuple[str, ...]
    """Where a request names its session."""
    meters: Mapping[str, str]
    """Limit → its header."""
    stated: Mapping[str, str]
    """Limit that a plain profile states → what it allows, in words."""
    groups: Mapping[str, tuple[str, ...]]
    """Calls of a plain profile that share limits: name → path globs."""
    safe_paths: tuple[str, ...]
    """Of a plain profile: calls that change nothing."""
    windows: tuple[str, ...]
    outcomes: int
    """How many rules of its own it has for what answers mean."""
    refusals: Mapping[str, str]
    """When → status and error of our own refusals."""
    doubts: tuple[str, ...]
    """What may be meant otherwise, in words."""


class CheckedEvents(Struct, frozen=True):
    """Events of one stream that mean the same."""

    meaning: str
    """`bookkeeping`, `content`, `error` or `terminal`."""
    name: str
    """Empty: they have none."""
    count: int


class CheckedRequest(Struct, frozen=True):
    """What is understood of a request."""

    format: str
    model: str
    streamed: bool
    max_output_tokens: int | None
    messages: int
    prompt_bytes: int
    tools: bool
    kind: CallKind
    agent: str
    session: str
    parent_session: str
    pool: PoolKey
    """With the account hashed."""


class CheckedAnswer(Struct, frozen=True):
    """What is understood of an answer."""

    status: int
    media_type: str
    is_stream: bool
    end: str
    """`complete`, `cut`, `error`, or `unreadable`."""
    events: tuple[CheckedEvents, ...]
    said_chars: int
    """What it says to people: text, thinking, tool calls."""
    stop: str
    error: str
    usage: Usage | None
    """`reported`: the answer tells it; else it was counted."""
    kind: OutcomeKind
    reason: str
    retryable: bool
    retry_after_s: float | None
    account_block_s: float | None
    meters: tuple[Reading, ...]
    windows: tuple[WindowReading, ...]
    account: str
    """The account that it names, hashed; empty: none."""


class CheckedExchange(Struct, frozen=True):
    """One recorded exchange."""

    number: int
    """In the sample, from 1."""
    method: str
    host: str
    path: str
    """Without its query."""
    claimed: bool
    why: str
    """Why it is, or is not, a model call of the profile."""
    request: CheckedRequest | None = None
    answer: CheckedAnswer | None = None
    oddities: tuple[str, ...] = ()
    """What could not be read, and passes all the same."""
    faults: tuple[str, ...] = ()
    """What a profile of this provider has to understand, and does not."""


class ProfileCheck:
    """One profile file, loaded as if it lay in the user's folder."""

    def __init__(self, file: Path) -> None:
        """DocumentError: one line that names file, key path and cure."""
        self._profiles, chain = load_profile(file)
        self._profile = self._profiles.by_name[chain[0]]
        self.told = _told(self._profile, str(file), chain[1:])
        """What it says."""

    def __repr__(self) -> str:
        return f"<ProfileCheck {self.told.name}>"

    def read(self, sample: Path) -> tuple[Sequence[CheckedExchange], Sequence[str]]:
        """Each exchange of a HAR, a flow file or a capture, and what of the file is damaged. Raises NotACapture."""
        from hivemind_addon.plugins.captures.file import flows_of  # noqa: PLC0415 - mitmproxy takes a second to load

        flows, damage = flows_of(sample)
        reader = _SampleReader(self._profiles, self._profile)
        return [reader.exchange(number, flow) for number, flow in enumerate(flows, 1)], damage


def _told(profile: Profile, file: str, extends: tuple[str, ...]) -> CheckedProfile:
    held, budget, block = profile.refusal, profile.budget_refusal, profile.account_block_refusal
    refusals = {
        "to a client that is held too long": f"{held.status} {held.error}",
        "when a budget is spent": f"{budget.status} {budget.error}",
        "while the account is refused": f"{block.status} {block.error}",
    }
    return CheckedProfile(
        name=profile.name,
        file=file,
        extends=extends,
        hosts=profile.hosts,
        paths=profile.paths,
        exclude_paths=profile.exclude_paths,
        reverse_paths=profile.reverse_paths,
        websocket=profile.websocket.value,
        upstreams={one.name: one.url for one in profile.upstreams},
        formats=tuple(_format(paths, form) for paths, form in (*profile.formats.items(), ("", profile.format))),
        model_paths=profile.model_paths,
        account={
            "response_account_headers": profile.response_account_headers,
            "account": tuple(map(str, profile.account)),
            "credentials": tuple(map(str, profile.credentials)),
        },
        sessions=profile.session_headers,
        meters={one.meter: one.limit for one in profile.meters},
        stated={one.limit: _stated(one.amount, one.per_s, one.reads, one.writes) for one in profile.stated},
        groups=profile.groups,
        safe_paths=profile.safe_paths,
        windows=tuple(one.window for one in profile.windows),
        outcomes=len(profile.outcomes),
        refusals=refusals,
        doubts=tuple(_doubts(profile)),
    )


def _stated(amount: float, per_s: float, reads: int, writes: int) -> str:
    takes = "" if reads == writes == 1 else f", of which a read takes {reads} and a write {writes}"
    return f"{amount:g} in {per_s:g} s{takes}"


def _doubts(profile: Profile) -> Iterator[str]:
    if not profile.paths:
        yield "paths is empty: nothing is scheduled; list the paths of model calls, or extend a profile that does"
    if not profile.hosts and not profile.reverse_paths:
        yield "hosts is empty: it counts only where hivemind_reverse_profile names it"
    if not (profile.account or profile.credentials or profile.response_account_headers):
        yield "nothing names an account: all clients share one"


def _format(paths: str, form: WireFormat) -> CheckedFormat:
    preset = packaged_formats().get(form.name)
    return CheckedFormat(
        paths=paths,
        preset=form.name if preset else "",
        changed=dict(_changed(form, preset or WireFormat(name=form.name), "")),
    )


def _changed(value: Any, before: Any, at: str) -> Iterator[tuple[str, Any]]:
    if value == before:
        return
    if is_dataclass(value) and type(value) is type(before):
        for one in fields(value):
            place = f"{at}.{one.name}" if at else one.name
            yield from _changed(getattr(value, one.name), getattr(before, one.name), place)
    else:
        yield at, msgspec.to_builtins(value)


class _SampleReader:
    """Reads the exchanges of one sample, one after the other."""

    def __init__(self, profiles: Profiles, profile: Profile) -> None:
        self._profiles = profiles
        self._profile = profile
        self._estimator = Estimator(Tokenizer())

    def exchange(self, number: int, flow: http.HTTPFlow) -> CheckedExchange:
        """What is understood of a flow."""
        host, port = destination(flow)
        path = flow.request.path.partition("?")[0]
        claimed, why = self._claim(flow, host, port)
        usual = 443 if flow.request.scheme == "https" else 80
        told = CheckedExchange(
            number, flow.request.method, host if port == usual else f"{host}:{port}", path, claimed, why
        )
        return self._understood(told, flow) if claimed else told

    def _claim(self, flow: http.HTTPFlow, host: str, port: int) -> tuple[bool, str]:
        profile, request = self._profile, flow.request
        owner, where = self._profiles.match_host(host, port), "its host is among hosts"
        if owner is None and self._profiles.for_path(request.path) is profile:
            owner, where = profile, "no profile has its host, but in reverse mode reverse_paths have its path"
        if owner is None:
            return False, "host: no profile has it among hosts"
        if owner is not profile:
            return False, f"host: it is the profile {owner.name}'s"
        glob = matching_path(profile.paths, request.path)
        if glob is None:
            return False, "path: none of paths matches"
        if excluded := matching_path(profile.exclude_paths, request.path):
            return False, f"path: {excluded} of exclude_paths matches"
        if request.headers.get("upgrade", "").lower() == "websocket":
            return False, f"method: a WebSocket's upgrade, not a POST (websocket: {profile.websocket.value})"
        if not is_call(profile, request.method, request.path):
            return False, f"method: {request.method}, and only POST is a model call"
        return True, f"{where}, and {glob} matches its path"

    def _understood(self, told: CheckedExchange, flow: http.HTTPFlow) -> CheckedExchange:
        described = describe_request(
            self._profile, plain_request(flow), self._estimator, user="", peer=peer_of(flow), rough=True
        )
        facts, who = described.facts, described.who
        request = CheckedRequest(
            format=described.dialect.name,
            model=facts.model,
            streamed=facts.stream,
            max_output_tokens=facts.max_output_tokens,
            messages=len(facts.message_bytes),
            prompt_bytes=facts.prompt_bytes,
            tools=facts.has_tools,
            kind=described.kind,
            agent=who.agent,
            session=who.session,
            parent_session=who.parent_session,
            pool=unnamed(described.pool),
        )
        if flow.response is None:
            return msgspec.structs.replace(told, request=request, oddities=facts.oddities, faults=("no answer",))
        answer, oddities = self._answer(flow, described.dialect, is_stream_asked=facts.stream)
        return msgspec.structs.replace(
            told,
            request=request,
            answer=answer,
            oddities=(*facts.oddities, *_unsaid(request), *oddities),
            faults=tuple(_faults(answer)),
        )

    def _answer(
        self, flow: http.HTTPFlow, dialect: Dialect, *, is_stream_asked: bool
    ) -> tuple[CheckedAnswer, Sequence[str]]:
        response = flow.response
        assert response is not None
        raw = response.raw_content or b""
        headers = plain_headers(response.headers.fields)
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        clock = StoppedClock(response.timestamp_start)
        answer = AnswerInProgress(self._profile, dialect, clock, is_stream_asked)
        answer.head(response.status_code, headers)
        is_stream = answer.read(raw)
        hints = answer.hints
        oddities = [*hints.oddities]
        body = raw
        events: Sequence[CheckedEvents] = ()
        if is_stream:
            phase = answer.finish() if flow.error is None else answer.phase
            body = answer.take_kept()
            outcome = answer.judge_stream()
            usage = answer.usage(outcome, self._estimator.count)
            events = _events(dialect, body, media_type)
            end = {Phase.COMPLETE: "complete", Phase.FAILED: "error"}.get(phase or Phase.CONTENT, "cut")
        else:
            outcome, usage = answer.judge_body(response.status_code, raw, self._estimator.count)
            try:
                body = decode(raw, headers.get("content-encoding", ""), _READ_BYTES)
            except DecodeError as error:
                oddities.append(f"answer: {error}")
            is_error = response.status_code != 200 or error_in_body(body, dialect.form.error) is not None
            end = "error" if is_error else "cut" if flow.error is not None else "complete"
        if answer.unreadable is not None:
            end = "unreadable"
            oddities.append(f"answer: {answer.unreadable}")
        windows = (*hints.windows, *(told.windows if (told := answer.stream_windows()) else ()))
        transcript = answer_of(dialect, body, media_type=media_type)
        checked = CheckedAnswer(
            status=response.status_code,
            media_type=media_type,
            is_stream=is_stream,
            end=end,
            events=tuple(events),
            said_chars=sum(len(part.text) for part in transcript.parts),
            stop=transcript.stop,
            error=transcript.error,
            usage=usage,
            kind=outcome.kind,
            reason=outcome.reason,
            retryable=outcome.retryable,
            retry_after_s=outcome.retry_after_s,
            account_block_s=outcome.account_block_s,
            meters=hints.readings,
            windows=windows,
            account=unnamed(PoolKey("", hints.account, "")).account if hints.account else "",
        )
        return checked, [*oddities, *_odd(checked, transcript, dialect, is_stream_asked=is_stream_asked)]


def _events(dialect: Dialect, body: bytes, media_type: str) -> Sequence[CheckedEvents]:
    """What each event would mean before the first content; equal ones counted, in the order of the first of them."""
    parser = dialect.parser(media_type)
    events = [*parser.feed(body), *parser.finish()]
    if dialect.unwrapper is not None:
        events = list(map(dialect.unwrapper.unwrap, events))
    counts = Counter((dialect.classify(event), event_name(event)) for event in events)
    return [CheckedEvents(meaning.value, name, count) for (meaning, name), count in counts.items()]


def _unsaid(request: CheckedRequest) -> Iterator[str]:
    if not request.model:
        yield "request: no model (request.model, or model_paths): all models share one queue"
    if not request.messages:
        yield "request: no conversation (request.messages): its size is a guess"


def _odd(answer: CheckedAnswer, transcript: Transcript, dialect: Dialect, *, is_stream_asked: bool) -> Iterator[str]:
    if answer.status != 200:
        return
    if is_stream_asked and not answer.is_stream:
        known = ", ".join(dialect.media_types)
        yield f"answer: a stream was asked for, and {answer.media_type or 'no media type'} is none (framing: {known})"
    if answer.is_stream and answer.kind is OutcomeKind.SUCCESS and not (transcript.parts or transcript.unsaid):
        yield "answer: none of its words were found (wording, says): nobody can read or count them"


def _faults(answer: CheckedAnswer) -> Iterator[str]:
    """Of an answer with the status 200 that is not an error: that is understood, too."""
    if answer.status != 200 or answer.end == "error":
        return
    if answer.end == "unreadable":
        yield "its body cannot be read"
    if answer.end == "cut":
        yield "its stream has no end (events.terminal, done, done_if, complete_if)"
    has_content = any(one.meaning == EventClass.CONTENT.value for one in answer.events)
    if not (has_content if answer.is_stream else answer.said_chars or answer.stop):
        yield f"no content was found ({'events.content' if answer.is_stream else 'wording, says'})"
    if answer.usage is None or not answer.usage.reported:
        yield f"no usage was found (usage.{'in_events' if answer.is_stream else 'at'}, input, output)"
