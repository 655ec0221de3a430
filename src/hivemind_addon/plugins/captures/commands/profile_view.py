"""What `hivemind config profile check` found, in words. By itself: it takes rich."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hivemind_addon.kernel.values.ticket import Reading, Usage, WindowReading
from hivemind_addon.plugins.captures.profile_check import (
    CheckedAnswer,
    CheckedExchange,
    CheckedFormat,
    CheckedProfile,
    CheckedRequest,
)
from hivemind_addon.proxy.api.words import brief, printable, several, short

type _Lines = Iterator[tuple[str, str, str]]
"""Heading, words, style."""


def print_profile(told: CheckedProfile) -> None:
    """What a profile says."""
    extends = f", which extends {', '.join(told.extends)}" if told.extends else ""
    _print(Text.assemble((told.file, "bold"), f": the profile {told.name}{extends}"), _profile_lines(told))


def print_exchanges(exchanges: Sequence[CheckedExchange], damage: Sequence[str]) -> None:
    """What was understood of each exchange, and of all."""
    for one in exchanges:
        style = "bold red" if one.faults else "bold" if one.claimed else "dim"
        where = f"{one.number}. {one.method} {one.host}{one.path}"
        _print(Text(printable(where), style=style), _exchange_lines(one))
    claimed = [one for one in exchanges if one.claimed]
    faulty = [one for one in claimed if one.faults]
    lines = [("damaged", what, "red") for what in damage]
    text = f"{several(len(exchanges), 'exchange')}: {several(len(claimed), 'model call')} of this profile"
    if not claimed:
        text += ", so that nothing was tried; compare hosts and paths with the exchanges"
    elif faulty:
        text += f", {len(faulty)} not understood: {', '.join(str(one.number) for one in faulty)}"
    else:
        text += ", all understood"
    _print(Text(text, style="bold" if claimed and not faulty else "bold red"), iter(lines))


def _print(title: Text, lines: _Lines) -> None:
    console = Console(highlight=False, markup=False)
    console.print(title)
    table = Table.grid(padding=(0, 1))
    table.add_column(min_width=11, no_wrap=True)
    table.add_column(overflow="fold")
    before = ""
    for heading, words, style in lines:
        table.add_row(
            Text("" if heading == before else f"  {heading}", style="dim"), Text(printable(words), style=style)
        )
        before = heading
    if table.row_count:
        console.print(table)


def _profile_lines(told: CheckedProfile) -> _Lines:
    yield "hosts", _listed(told.hosts), ""
    yield "paths", _listed(told.paths), ""
    for heading, names in (("not", told.exclude_paths), ("reverse", told.reverse_paths), ("models", told.model_paths)):
        if names:
            yield heading, _listed(names), ""
    for name, url in told.upstreams.items():
        yield "upstreams", f"{name}: {url}", ""
    for one in told.formats:
        yield "format", _format_words(one), ""
        for key, value in one.changed.items():
            yield "format", f"  {key}: {msgspec.json.encode(value).decode()}", ""
    for name, headers in told.account.items():
        if headers:
            by_hash = ", as a hash" if name == "credentials" else ""
            yield "account", f"{name}: {_listed(headers)}{by_hash}", ""
    yield "sessions", _listed(told.sessions), ""
    yield "limits", _listed([f"{meter} ({header})" for meter, header in told.meters.items()]), ""
    for limit, words in told.stated.items():
        yield "stated", f"{limit}: {words}", ""
    for name, paths in told.groups.items():
        yield "groups", f"{name}: {_listed(paths)}", ""
    if told.safe_paths:
        yield "safe", _listed(told.safe_paths), ""
    if told.windows:
        yield "windows", _listed(told.windows), ""
    yield "outcomes", f"{several(told.outcomes, 'rule')} before the general ones", ""
    for when, answer in told.refusals.items():
        yield "refusals", f"{when}: {answer}", ""
    yield "websocket", told.websocket, ""
    for doubt in told.doubts:
        yield "doubt", doubt, "yellow"


def _format_words(one: CheckedFormat) -> str:
    paths = f"{one.paths}: " if one.paths else ""
    preset = one.preset or "one of its own"
    return (
        f"{paths}{preset}{f', with {several(len(one.changed), "key")} changed' if one.changed and one.preset else ''}"
    )


def _exchange_lines(one: CheckedExchange) -> _Lines:
    yield "scheduled" if one.claimed else "passes by", one.why, ""
    if one.request is not None:
        yield from _request_lines(one.request)
    if one.answer is not None:
        yield from _answer_lines(one.answer)
    for oddity in one.oddities:
        yield "odd", oddity, "yellow"
    for fault in one.faults:
        yield "fault", fault, "red"


def _request_lines(request: CheckedRequest) -> _Lines:
    words = [
        f"{request.format}: model {request.model or 'unknown'}",
        "streamed" if request.streamed else "not streamed",
        *([] if request.max_output_tokens is None else [f"at most {request.max_output_tokens:,} tokens"]),
        several(request.messages, "message"),
        f"{request.prompt_bytes:,} bytes",
        *(["with tools"] if request.tools else []),
    ]
    yield "request", _listed(words), ""
    parent = f" of {request.parent_session}" if request.parent_session else ""
    session = f"session {request.session or 'unknown'}{parent}"
    yield "whose", f"{request.agent}, {session}, account {request.pool.account}; {request.kind.value}", ""


def _answer_lines(answer: CheckedAnswer) -> _Lines:
    words = [
        f"{answer.status} {answer.media_type}",
        "stream" if answer.is_stream else "no stream",
        f"{answer.end}{f' because of {answer.stop}' if answer.stop else ''}",
        several(answer.said_chars, "character"),
        *([answer.error] if answer.error else []),
    ]
    yield "answer", _listed(words), ""
    if answer.is_stream:
        meanings = dict.fromkeys(one.meaning for one in answer.events)
        yield "events", _listed([_event_words(answer, meaning) for meaning in meanings]), ""
    if answer.usage is not None:
        yield "usage", _usage_words(answer.usage), ""
    again = "tried again" if answer.retryable else "not tried again"
    delay = "" if answer.retry_after_s is None else f", not before {brief(answer.retry_after_s)}"
    block_s = answer.account_block_s
    lasts = f"for {brief(block_s)}" if block_s else "nobody says how long"
    block = "" if block_s is None else f", account refused {lasts}"
    outcome = f"{answer.kind.value}: {answer.reason}"
    yield "outcome", outcome if answer.end == "complete" else f"{outcome}, {again}{delay}{block}", ""
    if answer.account:
        yield "account", answer.account, ""
    if answer.meters:
        yield "limits", _listed([_meter_words(one) for one in answer.meters]), ""
    if answer.windows:
        yield "windows", _listed([_window_words(one) for one in answer.windows]), ""


def _event_words(answer: CheckedAnswer, meaning: str) -> str:
    alike = [one for one in answer.events if one.meaning == meaning]
    names = [one.name for one in alike if one.name]
    return f"{sum(one.count for one in alike)} {meaning}{f' ({_listed(names)})' if names else ''}"


def _usage_words(usage: Usage) -> str:
    amounts: Mapping[str, int] = {
        "input": usage.input_tokens,
        "read from the cache": usage.cache_read_tokens,
        "written to it": usage.cache_write_tokens,
    }
    told = [f"{number:,} {what}" for what, number in amounts.items() if number or what == "input"]
    source = "" if usage.reported else ", counted here: the answer does not tell it"
    return f"{_listed([*told, f'{usage.output_tokens:,} output'])}{source}"


def _meter_words(one: Reading) -> str:
    left = "" if one.remaining is None else f" {short(one.remaining)} left"
    limit = "" if one.limit is None else f" of {short(one.limit)}"
    reset = "" if one.reset_in_s is None else f", whole in {brief(one.reset_in_s)}"
    return f"{one.meter}{left}{limit}{reset}"


def _window_words(one: WindowReading) -> str:
    used = "" if one.used is None else f" {one.used:.0%} used"
    status = f" {one.status}" if one.status else ""
    reset = "" if one.resets_in_s is None else f", anew in {brief(one.resets_in_s)}"
    return f"{one.window}{used}{status}{reset}"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"
