"""`python -m lab.bench.compaction`: how much compaction keeps, and its cost; writes the table of docs/compaction.md.

A simulated agent works through a session with Anthropic's API. Each turn calls a tool, and each request repeats all
messages. Facts stand in some of the results; in the end the agent needs each fact once. The code of the proxy with the
packaged profile's numbers decides what is taken out. The results are the same on every machine, in half a minute.

nothing      each request stays; the session ends where the model's context window is full
truncation   above `at` the oldest turns are dropped until `to` is left, as many agents do; the task stays
provider     the oldest results but the newest `keep` are gone from each request above `at`, as Anthropic's
             documentation of `clear_tool_uses_20250919` says; at least half of the span between `at` and `to`
stubs        the proxy's way (`plugins/contexts/compaction.py`); each needed fact is recalled in a turn of its own

The provider's prompt cache keeps the messages that two successive requests have in common; the rest is written.
"""

import json
import random
import re
from itertools import takewhile
from pathlib import Path
from statistics import mean

import msgspec

from hivemind_addon.formats.profile.grants import Compaction
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.kernel.budget import spend_of
from hivemind_addon.kernel.values.ticket import Usage
from hivemind_addon.plugins.contexts.compaction import shorten
from hivemind_addon.sim.actor import USUAL_PRICE
from lab.markdown import markdown_filled, markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "compaction.md"
WINDOW_TOKENS, FACTS, SEEDS = 200_000, 40, range(5)
SHORT_TURNS, LONG_TURNS = 80, 300
"""The first nearly fills a context window, the second fills it three times."""
_SETTINGS, _TOKENS, _DIALECT = Compaction(), load_profiles(None).by_name["anthropic"].tokens, dialect_named("anthropic")
_AT, _TO = _SETTINGS.at * WINDOW_TOKENS, _SETTINGS.to * WINDOW_TOKENS
_PREAMBLE_BYTES = 60_000
"""Instructions and tools of a coding agent."""
_encode = msgspec.json.Encoder().encode


def _tokens(size_bytes):
    return round(size_bytes * _TOKENS.scale / _TOKENS.bytes_per_token)


def _size(messages):
    return _tokens(_PREAMBLE_BYTES + sum(len(_encode(message)) for message in messages))


class Session:
    """The work of an agent under one strategy, in figures."""

    def __init__(self, seed, turns, strategy):
        self.strategy, self.sent, self.taken = strategy, [], {}
        self.usage, self.rewritten_tokens, self.times, self.dropped = Usage(), 0, 0, 0
        self.messages = [
            {"role": "user", "content": [{"type": "text", "text": "Find out why the tests fail, and mend it."}]}
        ]
        rng = random.Random(f"compaction {seed}")
        facts = [f"fact {number:02}: the key is {number * 7919 + 104729}" for number in range(FACTS)]
        planted = dict(zip(sorted(rng.sample(range(turns), FACTS)), facts, strict=True))
        self.turns = next(
            (turn for turn in range(turns) if not self._call(turn, "Bash", _result(rng, planted.get(turn)))), turns
        )
        last = b"".join(self.sent).decode()
        named = dict.fromkeys(re.findall(r"`hivemind context recall (\w+)`", last))
        recalled = [self.taken[name] for name in named if any(fact in self.taken[name] for fact in facts)]
        self.kept, self.recallable = sum(fact in last for fact in facts), len(recalled)
        self.input_tokens, self.read_share = (
            self.usage.total_input_tokens,
            self.usage.cache_read_tokens / self.usage.total_input_tokens,
        )
        self.usd = spend_of(self.usage, USUAL_PRICE).micro_usd / 1e6
        written, times = self.rewritten_tokens, self.times
        for number, text in enumerate(recalled):
            self._call(turns + number, "recall", text)
        self.recalls_usd = spend_of(self.usage, USUAL_PRICE).micro_usd / 1e6 - self.usd
        self.rewritten_tokens, self.times = written, times

    def _call(self, turn, tool, result):
        """Call a tool and send the next request; False: the window is full."""
        call = {"type": "tool_use", "id": f"toolu_{turn}", "name": tool, "input": {"step": turn}}
        answer = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": result}
        self.messages += [
            {"role": "assistant", "content": [{"type": "text", "text": "y" * 500}, call]},
            {"role": "user", "content": [answer]},
        ]
        sent = [_encode(message) for message in self.strategy(self, self.messages)]
        sizes = [_PREAMBLE_BYTES, *map(len, sent)]
        if (total := _tokens(sum(sizes))) > WINDOW_TOKENS:
            return False
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.sent, sent, strict=False)))
        read = _tokens(sum(sizes[: same + 1])) if self.sent else 0
        if same < len(self.sent):
            self.times += 1
            self.rewritten_tokens += min(_tokens(sum(map(len, self.sent[same:]))), total - read)
        self.usage += Usage(cache_read_tokens=read, cache_write_tokens=total - read, output_tokens=200)
        self.sent = sent
        return True


def _result(rng, fact):
    filler = "x" * round(min(max(rng.lognormvariate(0, 1.0) * 3_000, 80), 30_000))
    at = rng.randrange(len(filler))
    return filler if fact is None else f"{filler[:at]} {fact} {filler[at:]}"


def _truncated(session, messages):
    left = [messages[0], *messages[1 + session.dropped :]]
    size = _size(left)
    if size > _AT:
        while len(left) > 3 and size > _TO:
            size -= _tokens(sum(len(_encode(message)) for message in left[1:3]))  # a call and its result
            del left[1:3]
    session.dropped = len(messages) - len(left)
    return left


def _cleared(_session, messages):
    size = _size(messages)
    places = [number for number, message in enumerate(messages) if message["content"][0]["type"] == "tool_result"]
    cleared = list(messages)
    for number in places[: len(places) - _SETTINGS.keep]:
        block = messages[number]["content"][0] | {"content": "[cleared]"}
        cleared[number] = messages[number] | {"content": [block]}
    return cleared if size > _AT and size - _size(cleared) >= (_AT - _TO) / 2 else messages


def _stubs(session, messages):
    body = _encode({"model": "claude-sonnet-4-5", "messages": messages})
    short = shorten(
        body, _DIALECT, _SETTINGS, window_tokens=WINDOW_TOKENS, tokens=_TOKENS, preamble_bytes=_PREAMBLE_BYTES
    )
    if short is None:
        return messages
    session.taken |= {one.id: one.text for one in short.taken}
    return json.loads(short.body)["messages"]


STRATEGIES = {"nothing": lambda _, messages: messages, "truncation": _truncated, "provider": _cleared, "stubs": _stubs}


def table():
    """Means of all seeds."""
    columns = {
        "Turns": ("{:.0f}", lambda one: one.turns),
        "Facts kept": ("{:.1%}", lambda one: one.kept / FACTS),
        "Recallable": ("{:.1%}", lambda one: one.recallable / FACTS),
        "Lost": ("{:.1%}", lambda one: 1 - (one.kept + one.recallable) / FACTS),
        "Input": ("{:.2f} M", lambda one: one.input_tokens / 1e6),
        "Of it from the cache": ("{:.1%}", lambda one: one.read_share),
        "Cost": ("${:.2f}", lambda one: one.usd),
        "Written again": ("{:.0f} k", lambda one: one.rewritten_tokens / 1e3),
        "in times": ("{:.1f}", lambda one: one.times),
        "Recalls": ("${:.2f}", lambda one: one.recalls_usd),
    }
    rows = []
    for turns in (SHORT_TURNS, LONG_TURNS):
        for name, strategy in STRATEGIES.items():
            made = [Session(seed, turns, strategy) for seed in SEEDS]
            cells = (words.format(mean(map(of, made))) for words, of in columns.values())
            rows.append(" | ".join((f"{turns} turns", name, *cells)))
    return markdown_table(" | ".join(("Session", "Taken out by", *columns)), rows)


if __name__ == "__main__":
    parts = {"measured: python -m lab.bench.compaction": table()}
    PAGE.write_text(markdown_filled(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")
