"""What compaction keeps, and what it costs: a long session with facts planted in its tool results, in virtual terms.

One agent works through a session as Anthropic's API has it. Each turn calls a tool, and each request repeats all
messages. Facts stand in some of the results; in the end the agent needs each of them once. What is taken out of a
request decides the proxy's own code, with the packaged profile's numbers; what it takes out goes into the proxy's own
store and is read from there.

    nothing      every request as its agent sends it; the session ends where the model's context window is full
    truncation   above `at` the oldest turns are dropped until `to` is left, as many agents do; the task stays
    provider     the oldest results but the newest `keep` are gone from every request above `at`, as Anthropic's
                 documentation says of `clear_tool_uses_20250919`; at least half of what is between `at` and `to`
    stubs        the proxy's: `plugins/contexts/compaction.py`; what is needed again is recalled, in a turn of its own

Of a provider's prompt cache it takes that it keeps what the request before began with, to the message, and that the
agent has all of it cached: what is not read is written. Money is by the packaged price list. Nothing waits, and no
answer is wrong: how well a model works with less before it is not measured here.
"""

import json
import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from hivemind_addon.formats.profile.grants import Compaction
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.kernel.budget import spend_of
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import Usage
from hivemind_addon.plugins.contexts.compaction import TakenOut, shorten
from hivemind_addon.plugins.contexts.store import ContextStore, TakenResult
from hivemind_addon.sim.actor import USUAL_PRICE

MODEL = "claude-sonnet-4-5"
WINDOW_TOKENS = 200_000
SETTINGS = Compaction()
FACTS = 40
SEEDS = range(5)
SHORT_TURNS, LONG_TURNS = 80, 300
"""The first nearly fills a context window, the second fills it three times."""
_PREAMBLE_BYTES = 60_000
"""Instructions and tools of a coding agent."""
_MEDIAN_BYTES, _SPREAD, _LEAST_BYTES, _MOST_BYTES = 3_000, 1.0, 80, 30_000
"""Of a tool's result; coding agents cut longer ones."""
_SAID_BYTES = 500
"""What the model says with a call."""
_OUTPUT_TOKENS = 200
_PROFILE = load_profiles(None).by_name["anthropic"]
_DIALECT = dialect_named("anthropic")
_NAMED = re.compile(r"`hivemind context recall (\w+)`")
_encode = msgspec.json.Encoder().encode

type Message = dict[str, Any]
type Strategy = Callable[["_Session", Sequence[Message]], Sequence[Message]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One session under one strategy."""

    turns: int
    """That the session had before it ended or the window was full."""
    kept: int
    """Facts that stand in the last request before they are needed."""
    recallable: int
    """Facts that a stub in it leads to, and that the store has."""
    usage: Usage
    """Of all its requests, without those that recall something."""
    spend: Spend
    recalls: Spend
    """What it takes to recall all that can be."""
    rewritten_tokens: int
    """Input that had been in the cache, and was written to it again since what stood before it had changed."""
    times: int
    """So often."""

    @property
    def found(self) -> int:
        """Facts that are kept or recallable."""
        return self.kept + self.recallable

    @property
    def read_share(self) -> float:
        """Share of the input that came from the prompt cache."""
        return self.usage.cache_read_tokens / max(1, self.usage.total_input_tokens)


def _tokens(size_bytes: float) -> int:
    return round(size_bytes * _PROFILE.tokens.scale / _PROFILE.tokens.bytes_per_token)


class _Session:
    """One agent's work, request by request."""

    def __init__(self, seed: int, turns: int, store: ContextStore) -> None:
        self._rng = random.Random(f"compaction {seed}")
        self._planted = dict(zip(sorted(self._rng.sample(range(turns), FACTS)), map(_fact, range(FACTS)), strict=True))
        self._turns = turns
        self._store = store
        self.dropped = 0
        """Messages that truncation has dropped, behind the first."""
        self._messages: list[Message] = [_said("user", "Find out why the tests fail, and mend it.")]
        self._stored: set[str] = set()
        self._before: Sequence[bytes] = ()
        self._usage, self._rewritten_tokens, self._times = Usage(), 0, 0

    def play(self, strategy: Strategy) -> Measured:
        """All of it."""
        done = self._turns
        for turn in range(self._turns):
            self._call(turn, "Bash", self._result(self._planted.get(turn)))
            if not self._send(strategy):
                done = turn
                break
        last = b"".join(self._before).decode()
        kept = {fact for fact in self._planted.values() if fact in last}
        texts = [self._store.result(name).text for name in dict.fromkeys(_NAMED.findall(last))]
        recallable = [text for text in texts if any(fact in text for fact in self._planted.values())]
        rewritten, times = self._rewritten_tokens, self._times
        usage, price = self._usage, USUAL_PRICE
        for number, text in enumerate(recallable):  # each fact is needed once
            self._call(self._turns + number, "recall", text)
            self._send(strategy)
        whole, alone = spend_of(self._usage, price), spend_of(usage, price)
        return Measured(
            turns=done,
            kept=len(kept),
            recallable=len(recallable),
            usage=usage,
            spend=alone,
            recalls=Spend(whole.tokens - alone.tokens, whole.micro_usd - alone.micro_usd),
            rewritten_tokens=rewritten,
            times=times,
        )

    def keep(self, taken: Sequence[TakenOut]) -> None:
        """What was taken out of a request is in the store."""
        new = [one for one in taken if one.id not in self._stored]
        self._stored.update(one.id for one in new)
        if new:
            self._store.keep_results([TakenResult(one.id, 0.0, "", "", one.call_id, Raw(one.value)) for one in new])

    def _result(self, fact: str | None) -> str:
        size = self._rng.lognormvariate(0, _SPREAD) * _MEDIAN_BYTES
        filler = "x" * round(min(max(size, _LEAST_BYTES), _MOST_BYTES))
        at = self._rng.randrange(len(filler))
        return filler if fact is None else f"{filler[:at]} {fact} {filler[at:]}"

    def _call(self, turn: int, tool: str, result: str) -> None:
        call = {"type": "tool_use", "id": f"toolu_{turn}", "name": tool, "input": {"step": turn}}
        said = {"type": "text", "text": "y" * _SAID_BYTES}
        self._messages += [
            {"role": "assistant", "content": [said, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": result}]},
        ]

    def _send(self, strategy: Strategy) -> bool:
        """Send the next request. False: it does not fit."""
        sent = [_encode(message) for message in strategy(self, self._messages)]
        sizes = [_PREAMBLE_BYTES, *map(len, sent)]
        if _tokens(sum(sizes)) > WINDOW_TOKENS:
            return False
        same = 0
        while same < min(len(self._before), len(sent)) and self._before[same] == sent[same]:
            same += 1
        read = _tokens(sum(sizes[: same + 1])) if self._before else 0
        written = _tokens(sum(sizes)) - read
        if same < len(self._before):
            self._times += 1
            self._rewritten_tokens += min(_tokens(sum(map(len, self._before[same:]))), written)
        self._usage = msgspec.structs.replace(
            self._usage,
            cache_read_tokens=self._usage.cache_read_tokens + read,
            cache_write_tokens=self._usage.cache_write_tokens + written,
            output_tokens=self._usage.output_tokens + _OUTPUT_TOKENS,
        )
        self._before = sent
        return True


def _fact(number: int) -> str:
    return f"fact {number:02}: the key is {number * 7919 + 104729}"


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _size(messages: Sequence[Message]) -> int:
    return _tokens(_PREAMBLE_BYTES + sum(len(_encode(message)) for message in messages))


def _nothing(session: _Session, messages: Sequence[Message]) -> Sequence[Message]:
    del session
    return messages


def _truncation(session: _Session, messages: Sequence[Message]) -> Sequence[Message]:
    left = [messages[0], *messages[1 + session.dropped :]]
    size = _size(left)
    if size > SETTINGS.at * WINDOW_TOKENS:
        while len(left) > 3 and size > SETTINGS.to * WINDOW_TOKENS:
            size -= _tokens(sum(len(_encode(message)) for message in left[1:3]))  # a call and its result
            del left[1:3]
            session.dropped += 2
    return left


def _provider(session: _Session, messages: Sequence[Message]) -> Sequence[Message]:
    del session
    size = _size(messages)
    if size <= SETTINGS.at * WINDOW_TOKENS:
        return messages
    places = [number for number, message in enumerate(messages) if message["content"][0]["type"] == "tool_result"]
    cleared = list(messages)
    for number in places[: len(places) - SETTINGS.keep]:
        block = messages[number]["content"][0] | {"content": "[cleared]"}
        cleared[number] = messages[number] | {"content": [block]}
    least = (SETTINGS.at - SETTINGS.to) / 2 * WINDOW_TOKENS
    return cleared if size - _size(cleared) >= least else messages


def _stubs(session: _Session, messages: Sequence[Message]) -> Sequence[Message]:
    short = shorten(
        _encode({"model": MODEL, "messages": messages}),
        _DIALECT,
        SETTINGS,
        window_tokens=WINDOW_TOKENS,
        tokens=_PROFILE.tokens,
        preamble_bytes=_PREAMBLE_BYTES,
    )
    if short is None:
        return messages
    session.keep(short.taken)
    edited: list[Message] = json.loads(short.body)["messages"]
    return edited


STRATEGIES: Mapping[str, Strategy] = {
    "nothing": _nothing,
    "truncation": _truncation,
    "provider": _provider,
    "stubs": _stubs,
}


@cache
def measure(turns: int, seeds: range = SEEDS) -> Mapping[str, Sequence[Measured]]:
    """Each strategy's sessions of so many turns, one for each seed. Deterministic; some seconds."""
    measured: dict[str, list[Measured]] = {name: [] for name in STRATEGIES}
    for seed in seeds:
        for name, strategy in STRATEGIES.items():
            with tempfile.TemporaryDirectory() as folder:
                store = ContextStore(Path(folder) / "contexts")
                measured[name].append(_Session(seed, turns, store).play(strategy))
                store.close()
    return measured


# For people ----------------------------------------------------------------------------------------------------------


def rows() -> Sequence[tuple[str, str, str]]:
    """What AgentRM says of its context lifecycle manager beside this: what, theirs, ours."""
    short, long = measure(SHORT_TURNS), measure(LONG_TURNS)
    ours, truncated = (round(_mean(short[name], _rewritten)) for name in ("stubs", "truncation"))
    spent = f"none for summaries; written to the cache again: {ours:,}, beside {truncated:,}"
    return (
        ("planted facts kept or recallable, a window's fill", "100 %", _percent(short["stubs"])),
        ("the same with truncation", "65.1 %", _percent(short["truncation"])),
        ("planted facts kept or recallable, three windows' fill", "not told", _percent(long["stubs"])),
        ("the same with truncation", "not told", _percent(long["truncation"])),
        ("tokens for compaction in a session, beside truncation's", "34,330 for summaries, beside 17,212", spent),
    )


def section() -> str:
    """The table for docs/compaction.md."""
    facts, money = ("Facts kept", "Recallable", "Lost"), ("Cost", "Written again", "Recalls")
    titles = ("Session", "Taken out by", "Turns", *facts, "Input", "Of it from the cache", *money)
    lines = [f"| {' | '.join(titles)} |", f"| --- | ---{' | ---:' * (len(titles) - 2)} |"]
    for turns in (SHORT_TURNS, LONG_TURNS):
        for name, made in measure(turns).items():
            cells = (
                f"{turns} turns",
                name,
                f"{_mean(made, lambda one: one.turns):.0f}",
                f"{_mean(made, lambda one: one.kept) / FACTS:.1%}",
                f"{_mean(made, lambda one: one.recallable) / FACTS:.1%}",
                f"{1 - _mean(made, lambda one: one.found) / FACTS:.1%}",
                f"{_mean(made, lambda one: one.usage.total_input_tokens) / 1e6:.2f} M",
                f"{_mean(made, lambda one: one.read_share):.1%}",
                f"${_mean(made, lambda one: one.spend.micro_usd) / 1e6:.2f}",
                f"{_mean(made, _rewritten) / 1e3:.0f} k in {_mean(made, lambda one: one.times):.1f} times",
                f"${_mean(made, lambda one: one.recalls.micro_usd) / 1e6:.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _rewritten(one: Measured) -> float:
    return one.rewritten_tokens


def _mean(made: Sequence[Measured], what: Callable[[Measured], float]) -> float:
    return sum(map(what, made)) / len(made)


def _percent(made: Sequence[Measured]) -> str:
    return f"{100 * _mean(made, lambda one: one.found) / FACTS:.4g} %"
