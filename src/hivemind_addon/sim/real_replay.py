"""A capture run again through a real mitmdump with the addon: the scheduler of today on the night of yesterday.

    captured calls ──► one client for each ──► mitmdump, the addon ──► RecordedServer: answers as recorded
                       in captured order,       (its own, on loopback:
                       after captured think     nothing leaves this machine)
                       times

A client's own re-sends of a call are one call here: that is what the scheduler is for. Bodies are made anew, as large
as the captured ones: a capture without content replays as well. With a `pace` above 1 everything recorded runs faster;
the scheduler's own times (backoffs, probes) do not.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import msgspec
from msgspec import structs
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hivemind_addon.formats.profile.load import Profiles, is_call, load_profiles
from hivemind_addon.formats.wire.identity import account_of
from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.learned import LearnedPool, Saved
from hivemind_addon.kernel.values.spend import AccountState
from hivemind_addon.plugins.captures.file import calls_by_header
from hivemind_addon.plugins.captures.model import Capture, CapturedCall
from hivemind_addon.proxy.api.words import brief, several
from hivemind_addon.proxy.journal.journal import Journal
from hivemind_addon.proxy.journal.retention import JournalKeep
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.mitmdump import Mitmdump, running_mitmdump
from hivemind_addon.sim.recorded import CALL_HEADER, RecordedServer, dialect_of
from hivemind_addon.sim.replay.chains import RecordedTurn, chained

_PATHS = {
    SimDialect.MESSAGES: ("/v1/messages",),
    SimDialect.CHAT: ("/v1/chat/completions",),
    SimDialect.RESPONSES: ("/v1/responses", "/backend-api/codex/responses"),
    SimDialect.OLLAMA: ("/api/chat",),
}
_EXTENDED = {
    SimDialect.MESSAGES: "anthropic",
    SimDialect.CHAT: "openai-compatible",
    SimDialect.RESPONSES: "openai",
    SimDialect.OLLAMA: "ollama",
}
"""The profile of a host that none names."""
_LEAST_BODY_BYTES = 300
_BYTES_PER_TOKEN = 4
_MAX_TOKENS = 4096
_PATIENCE_S = 86_399


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One call, with its client's own re-sends, then and now."""

    recorded: CapturedCall
    replayed: CapturedCall | None
    """On the replay's own clock; None: it never came to the scheduler."""

    @property
    def differs(self) -> bool:
        """Whether it ended in another way."""
        return self.replayed is None or self.replayed.end != self.recorded.end


@dataclass(frozen=True, slots=True)
class RealReplay:
    """What came of it."""

    pace: float
    calls: tuple[ReplayedCall, ...]
    """In the captured order."""
    elapsed_s: float
    attempts: int
    """That reached the provider."""
    guard_trips: int
    """Exceptions of the addon's own."""


def run_real(capture: Capture, *, pace: float = 1.0, tell: Callable[[str], None] = lambda _line: None) -> RealReplay:
    """Run it; takes as long as the capture, divided by the pace.

    Raises MitmdumpNotStarted.
    """
    return asyncio.run(_run(capture, pace, tell))


async def _run(capture: Capture, pace: float, tell: Callable[[str], None]) -> RealReplay:
    loop = asyncio.get_running_loop()
    turns = {turn.id: turn for turn in chained(capture.calls)}
    capture = replace(capture, calls=tuple(one_call(turn) for turn in turns.values()))
    with tempfile.TemporaryDirectory(prefix="hivemind-replay-") as name:
        folder = Path(name)
        server = RecordedServer(capture, pace=pace)
        await server.start()
        try:
            urls, profiles = _hosts(capture, load_profiles(None))
            (folder / "profiles").mkdir()
            for profile, text in profiles.items():
                (folder / "profiles" / f"{profile}.yaml").write_text(text, encoding="utf-8")
            record = folder / "replay.flow"
            sets = (
                f"hivemind_profiles={folder / 'profiles'}",
                f"hivemind_capture={record}",
                "hivemind_capture_content=false",
                "hivemind_control=off",
                *(f"hivemind_redirect={host}={server.host}:{server.port}" for host in _names(capture)),
            )
            journal = str(await _remembered(folder, capture, pace)) if capture.learned else "off"
            async with running_mitmdump(folder / "mitmproxy", sets, journal=journal) as mitmdump:
                began_at = loop.time()
                await _calls(capture, turns, pace, mitmdump, urls, tell)
                elapsed_s = loop.time() - began_at
            replayed = calls_by_header(record, CALL_HEADER)
        finally:
            await server.stop()
    return RealReplay(
        pace=pace,
        calls=tuple(ReplayedCall(call, replayed.get(call.id)) for call in capture.calls),
        elapsed_s=elapsed_s,
        attempts=server.attempts,
        guard_trips=mitmdump.guard_trips,
    )


async def _remembered(folder: Path, capture: Capture, pace: float) -> Path:
    """The journal of a proxy that knows what the scheduler knew as the capture began."""
    path = folder / "journal.sqlite"
    saved = Saved(pools=tuple(_as_replayed(one, pace) for one in capture.learned), accounts=(), same_account={})
    journal = Journal(
        path, keep=JournalKeep(), keeper=_Remembers(saved), clock=SystemClock(), note=lambda _: None, fresh=True
    )
    await journal.close()
    return path


class _Remembers:
    """What a journal is to keep."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved

    def __repr__(self) -> str:
        return f"<_Remembers {len(self._saved.pools)} pools>"

    def export(self) -> dict[str, object]:
        """See Keeper."""
        return {"learned": self._saved.to_json()}

    def restore(self, kept: Mapping[str, object], standings: Sequence[AccountState]) -> None:
        """See Keeper."""

    def count_in(self, standings: Sequence[AccountState]) -> None:
        """See Keeper."""


def _as_replayed(learned: LearnedPool, pace: float) -> LearnedPool:
    """The limits under the name that the replay gives the pool, so many times as fast."""
    headers = {"authorization": _authorization(learned.account)}
    profile = load_profiles(None).by_name["openai"]

    def faster(limit: HiddenLimit | None) -> HiddenLimit | None:
        return (
            limit if limit is None or limit.window_s is None else replace(limit, amount=max(1.0, limit.amount * pace))
        )

    return structs.replace(
        learned,
        host=learned.host.partition(":")[0],
        account=account_of(profile, headers, {}, ""),
        throttles=faster(learned.throttles),
        overloads=faster(learned.overloads),
        meters=tuple(replace(meter, limit=max(1.0, meter.limit * pace)) for meter in learned.meters),
    )


def _authorization(account: str) -> str:
    return f"Bearer sk-replayed-{account}"


def _names(capture: Capture) -> Sequence[str]:
    """Hosts, without ports."""
    return sorted({_host(call) for call in capture.calls})


def _host(call: CapturedCall) -> str:
    return call.pool.host.partition(":")[0]


def _hosts(capture: Capture, profiles: Profiles) -> tuple[Mapping[tuple[str, SimDialect], str], Mapping[str, str]]:
    """Where calls go, and by name the profiles (YAML) that schedule them there.

    A host that no packaged one names has one of its own; one whose calls are played in another format has one in the
    place of its packaged one.
    """
    urls: dict[tuple[str, SimDialect], str] = {}
    made: dict[str, tuple[SimDialect, dict[str, None]]] = {}
    for call in capture.calls:
        host, dialect = _host(call), dialect_of(call)
        profile = profiles.match_host(host, 80)
        paths = _PATHS[dialect]
        path = next((one for one in paths if profile is not None and is_call(profile, "POST", one)), None)
        if path is None:
            name = f"replayed-{host}" if profile is None else profile.name
            made.setdefault(name, (dialect, {}))[1][host] = None
        urls[host, dialect] = f"http://{host}{path or paths[0]}"
    return urls, {
        name: f"extends: {_EXTENDED[dialect]}\nhosts: {list(hosts)}\n" for name, (dialect, hosts) in made.items()
    }


async def _calls(
    capture: Capture,
    turns: Mapping[str, RecordedTurn],
    pace: float,
    mitmdump: Mitmdump,
    urls: Mapping[tuple[str, SimDialect], str],
    tell: Callable[[str], None],
) -> None:
    """All calls, each when its turn comes, to the last one's end."""
    done = {call.id: asyncio.Event() for call in capture.calls}
    ended = 0
    async with _clients(capture, mitmdump) as clients, asyncio.TaskGroup() as group:

        async def one(call: CapturedCall) -> None:
            nonlocal ended
            turn = turns[call.id]
            for earlier in turn.after:
                await done[earlier.id].wait()
            await pause(turn.think_s / pace)
            try:
                await _ask(clients[call.agent, call.delivery, call.priority.name], call, urls, pace)
            finally:
                done[call.id].set()
                ended += 1
                tell(f"{ended} of {len(capture.calls)} calls")

        for call in capture.calls:
            group.create_task(one(call))


@asynccontextmanager
async def _clients(
    capture: Capture, mitmdump: Mitmdump
) -> AsyncIterator[Mapping[tuple[str, str, str], httpx.AsyncClient]]:
    """One for each agent and what it asks for: its name and its words are in the proxy's address."""
    wanted = {(call.agent, call.delivery, call.priority.name) for call in capture.calls}
    clients = {}
    for agent, delivery, priority in wanted:
        words = f"{delivery},prio-{priority.lower()},wait-{_PATIENCE_S}"
        proxy = httpx.Proxy(f"http://127.0.0.1:{mitmdump.port}", auth=(agent, words))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        patience = httpx.Timeout(None)  # each call has its own
        clients[agent, delivery, priority] = httpx.AsyncClient(
            proxy=proxy, timeout=patience, trust_env=False, limits=limits
        )
    try:
        yield clients
    finally:
        for client in clients.values():
            await client.aclose()


async def _ask(
    client: httpx.AsyncClient, call: CapturedCall, urls: Mapping[tuple[str, SimDialect], str], pace: float
) -> None:
    """One call, to whatever end. A client that went then goes now, after the same time."""
    headers = {
        CALL_HEADER: call.id,
        "x-session-id": call.session,
        "authorization": _authorization(call.pool.account),
        "content-type": "application/json",
        **({"x-parent-session-id": call.parent_session} if call.parent_session else {}),
    }
    patience_s = (call.ended_s - call.at_s) / pace if call.end == "cancelled" else call.patience_s
    url = urls[_host(call), dialect_of(call)]
    with suppress(httpx.HTTPError, TimeoutError):
        async with (
            asyncio.timeout(patience_s),
            client.stream("POST", url, content=request_body(call), headers=headers) as answer,
        ):
            async for _ in answer.aiter_raw():
                pass


def one_call(turn: RecordedTurn) -> CapturedCall:
    """A turn as one call: what its client sent again after a refusal is now the scheduler's to try again."""
    attempts = tuple(replace(attempt, number=number) for number, attempt in enumerate(turn.attempts, start=1))
    waited_s = sum(call.waited_s for call in turn.calls)
    return replace(turn.last, id=turn.id, at_s=turn.at_s, attempts=attempts, waited_s=waited_s)


def request_body(call: CapturedCall) -> bytes:
    """A request as large as the captured one, whose shared part is the same for the same prefix."""
    size = max(_LEAST_BODY_BYTES, call.request_bytes)
    shared_bytes = min(call.prefix_tokens * _BYTES_PER_TOKEN, size // 2)
    shared = _text(f"instructions {call.prefix}", shared_bytes)
    last = call.attempts[-1].usage if call.attempts else None
    most = max(call.demand.output_tokens, last.output_tokens if last else 0) or _MAX_TOKENS
    body = _body(call, shared, "", most)
    return _body(call, shared, _text(f"turn {call.request_hash or call.id}", size - len(body)), most)


def _body(call: CapturedCall, shared: str, words: str, most: int) -> bytes:
    message = {"role": "user", "content": words}
    request: dict[str, object] = {"model": call.model, "stream": call.streamed}
    match dialect_of(call):
        case SimDialect.MESSAGES:
            mark = {"cache_control": {"type": "ephemeral"}} if shared else {}
            system = [{"type": "text", "text": shared, **mark}] if shared else []
            request |= {"max_tokens": most, "system": system, "messages": [message]}
        case SimDialect.CHAT:
            request |= {"max_tokens": most, "messages": [{"role": "system", "content": shared}, message]}
            request |= {"stream_options": {"include_usage": True}} if call.streamed else {}
        case SimDialect.RESPONSES:
            request |= {"max_output_tokens": most, "instructions": shared, "input": [message]}
        case SimDialect.OLLAMA:
            request |= {"options": {"num_predict": most}, "messages": [{"role": "system", "content": shared}, message]}
    return msgspec.json.encode(request)


def _text(seed: str, size: int) -> str:
    """So many characters that begin with the seed."""
    piece = f"{seed} the file returns a value when the error is in a line of the test "
    return (piece * (max(0, size) // len(piece) + 1))[: max(0, size)]


_LONG = 40
"""Calls; of more only those are shown that differ, and those that waited longest."""


def real_view(replay: RealReplay) -> RenderableType:
    """The table and its sums."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("call")
    table.add_column("agent", overflow="ellipsis", no_wrap=True, max_width=24)
    for title in ("arrived", "attempts", "then", "waited", "then"):
        table.add_column(title, justify="right", style="dim" if title == "then" else "")
    table.add_column("end", no_wrap=True)
    table.add_column("then", no_wrap=True, style="dim")
    shown = [call for _, call in zip(range(_LONG), _in_order(replay), strict=False)]
    for call in shown:
        table.add_row(*_cells(call), style="bold red" if call.differs else "")
    return Group(table, *_left_out(replay, len(shown)), Text(), *_sums(replay))


def _in_order(replay: RealReplay) -> list[ReplayedCall]:
    """All, as they came; of many those that tell most first."""
    if len(replay.calls) <= _LONG:
        return list(replay.calls)
    return sorted(
        replay.calls, key=lambda call: (not call.differs, -abs(_waited(call.replayed) - call.recorded.waited_s))
    )


def _left_out(replay: RealReplay, shown: int) -> Iterator[Text]:
    if shown < len(replay.calls):
        yield Text(f"and {len(replay.calls) - shown} more, nearer to what was recorded", style="dim")


def _cells(call: ReplayedCall) -> tuple[str, ...]:
    then, now = call.recorded, call.replayed
    return (
        then.id[:10],
        then.agent,
        brief(then.at_s),
        str(len(now.attempts)) if now else "-",
        str(len(then.attempts)),
        brief(now.waited_s) if now else "-",
        brief(then.waited_s),
        now.end if now else "never came",
        then.end,
    )


def _sums(replay: RealReplay) -> Iterator[Text]:
    then = [call.recorded for call in replay.calls]
    now = [call.replayed for call in replay.calls if call.replayed is not None]
    pace = f", {replay.pace:g} times as fast" if replay.pace != 1 else ""
    yield Text(f"replayed in {brief(replay.elapsed_s)}{pace}: {_ends(now)}; recorded: {_ends(then)}")
    yield Text(
        f"attempts {sum(len(call.attempts) for call in now)}, recorded {sum(len(call.attempts) for call in then)}; "
        f"waited {brief(sum(call.waited_s for call in now))}, recorded {brief(sum(call.waited_s for call in then))}"
    )
    if replay.guard_trips:
        yield Text(
            f"{several(replay.guard_trips, 'guard trip')}: the scheduler has failed, please report", style="bold red"
        )


def _ends(calls: list[CapturedCall]) -> str:
    return ", ".join(f"{count} {end}" for end, count in Counter(call.end for call in calls).most_common()) or "nothing"


def _waited(call: CapturedCall | None) -> float:
    return call.waited_s if call else 0.0
