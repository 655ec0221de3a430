"""What a request will take from each limit, before it is sent; and what it really took.

    total input = the last real input + output of the same conversation + what was appended      (anchored)
                | the whole body, counted                                                         (new)

Text is counted with tiktoken only where it is short; longer text by its bytes. Both are corrected by what the
provider's own usage shows, per model: `ratio` is its tokens for one of ours, `bytes_per_token` covers JSON
syntax and escapes as well. A rough estimate takes short text by its bytes, too, once enough answers have told how many
make a token: counting costs more than all other reading of a request, and only near a limit does it matter.

A conversation is recognised by its sizes alone: agents move their cache marks from message to message, so no message
stays the same to the byte; and where sizes agree, so do the tokens.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from msgspec import Struct

from hivemind_addon.formats.profile.model import InputCharge, OutputCharge, Profile
from hivemind_addon.formats.wire.request import RequestFacts, is_answer, text_of
from hivemind_addon.formats.wire.tokenizer import Tokenizer
from hivemind_addon.kernel.values.ticket import Demand, Usage

_COUNTED_BYTES = 12 * 1024
"""Longer text is not counted: tiktoken needs up to 2 ms for so much."""

_MEDIA_TOKENS = 1500
"""An image of the largest useful size (Anthropic: width * height / 750, about 1,600; 2026-08)."""

_WHOLE = -1
"""Where the whole prompt begins: before the first message."""

_SAME_BYTES = 512
"""Conversations that differ by less are the same one: four cache marks and a few words."""

_CONVERSATIONS = 4
"""Of one session: its main loop, sub-agents, titles."""

_SESSION_ANSWERS = 40
_MODEL_ANSWERS = 200
"""So many of the newest answers tell how long the next one may be."""

_SESSIONS = 4096
_MODELS = 256

_LEARNING = 0.2
"""Weight of the newest sample."""

_TELLING_TOKENS = 200
"""Fewer say nothing about a ratio."""

_ENOUGH_LESSONS = 10
"""After so many whole prompts that a provider has counted, a model's bytes for a token are known."""
_COUNTED_EVERY = 32
"""Of the estimates that could be rough one of so many is not: the ratio goes on learning, and is true when needed."""

_USUAL_BYTES_PER_TOKEN = 4
"""Of text whose model is not known."""

_RATIO_BOUNDS = (0.5, 3.0)
_BYTES_PER_TOKEN_BOUNDS = (1.0, 8.0)


ENOUGH = 20
"""With fewer sizes of answers there is no p95."""
SHARE = 0.95


class OutputSizes:
    """How long the answers of one session or of one model are. Numbers only, bounded.

    likely    mean + 2 mean deviations, as TCP tracks round trips (RFC 6298): what meters reserve
    p95       of the newest sizes, so that of a hundred attempts five exceed it: what budgets reserve
    """

    __slots__ = ("_by_size", "_deviation", "_mean", "_newest", "_window")

    def __init__(self, *, window: int) -> None:
        """`window`: so many sizes make the p95."""
        self._mean = 0.0
        self._deviation = 0.0
        self._window = window
        self._newest: deque[int] = deque()
        self._by_size: list[int] = []
        """The same, the smallest first."""

    @property
    def known(self) -> bool:
        """Whether anything was learned."""
        return bool(self._newest)

    def learn(self, tokens: int) -> None:
        """One answer was so long."""
        if not self._newest:
            self._mean, self._deviation = tokens, tokens / 2
        else:
            self._deviation += _LEARNING * (abs(tokens - self._mean) - self._deviation)
            self._mean += _LEARNING * (tokens - self._mean)
        self._newest.append(tokens)
        insort(self._by_size, tokens)
        if len(self._newest) > self._window:
            del self._by_size[bisect_left(self._by_size, self._newest.popleft())]

    @property
    def likely_tokens(self) -> int:
        """Rarely exceeded."""
        return round(self._mean + 2 * self._deviation)

    @property
    def p95_tokens(self) -> int | None:
        """The next answer is longer in five of a hundred cases; None: too little is known.

        Of n sizes the k-th smallest is exceeded by the next one with the probability 1 - k / (n + 1).
        """
        known = len(self._newest)
        if known < ENOUGH:
            return None
        rank = min(known, math.ceil(SHARE * (known + 1)))
        return self._by_size[rank - 1]


@dataclass(slots=True)
class _Model:
    """What was learned about one model of one profile."""

    ratio: float
    bytes_per_token: float
    lessons: int = 0
    """Whole prompts that the provider has counted."""
    rough: int = 0
    """Estimates that could be rough."""
    outputs: OutputSizes = field(default_factory=lambda: OutputSizes(window=_MODEL_ANSWERS))


class _Anchor(Struct, frozen=True, gc=False):
    """The last real usage of one conversation."""

    model: str
    messages: int
    messages_bytes: int
    preamble_bytes: int
    media: int
    input_tokens: int
    output_tokens: int
    cached: bool


@dataclass(slots=True)
class _Session:
    anchors: list[_Anchor] = field(default_factory=list)
    """Newest last."""
    outputs: OutputSizes = field(default_factory=lambda: OutputSizes(window=_SESSION_ANSWERS))


_NEW_SESSION = _Session()
"""Nothing is written to it."""


class _Input(Struct, frozen=True, gc=False):
    """An estimate of the input, and how it came about."""

    tokens: int
    cached_tokens: int
    counted: int
    """Our tokens in it that the ratio was applied to; 0: none, the bytes were."""
    known: int
    """Tokens of it that the provider itself has told."""
    is_rough: bool = False
    """Counting would tell more."""


class Estimate(Struct, frozen=True, gc=False):
    """What one attempt will take and use."""

    demand: Demand = Demand()
    """From the limits, by the profile's charge."""
    expected: Usage = Usage()
    """For the budgets: the input that is likely, and the output's p95. The session's own p95, until enough is known of
    it its model's; before that what is likely.
    """
    is_rough: bool = False
    """The tokens could be counted: where they matter, ask for that."""
    known: int = 0
    """Tokens of the input that the provider itself has told."""
    counted: int = 0
    """Our count of the rest; 0: the bytes were taken."""


class Estimator:
    """Estimates demands and learns from usage. Keeps sizes and numbers, never text; bounded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._models: OrderedDict[tuple[str, str], _Model] = OrderedDict()

    def estimate(self, profile: Profile, facts: RequestFacts, session: str, *, rough: bool = False) -> Estimate:
        """What an attempt will take. At most about 2 ms, whatever the body's size; `rough`: in microseconds."""
        known = self._sessions.get(session, _NEW_SESSION)
        model = self._model(profile, facts.model)
        anchor = _anchor_of(facts, known)
        if rough := rough and model.lessons >= _ENOUGH_LESSONS:
            model.rough += 1
            rough = model.rough % _COUNTED_EVERY != 0
        read = self._input(model, facts, anchor, rough=rough)
        cached_tokens = read.cached_tokens
        new = max(0, read.tokens - cached_tokens)
        # What a caching conversation appends is written to the cache.
        written = new if cached_tokens else 0
        charged = read.tokens - (cached_tokens if profile.charge.input is InputCharge.UNCACHED else 0)
        maximum = facts.max_output_tokens
        seen = known.outputs if known.outputs.known else model.outputs
        likely = seen.likely_tokens if seen.known else profile.charge.default_output_tokens
        reserved = likely if maximum is None else min(likely, maximum)
        if profile.charge.output is OutputCharge.MAX_TOKENS:
            reserved = profile.charge.default_output_tokens if maximum is None else maximum
        used = known.outputs.p95_tokens
        if used is None:
            used = model.outputs.p95_tokens
        if used is None:
            used = likely
        return Estimate(
            demand=_demand(max(1, charged), reserved),
            expected=Usage(
                input_tokens=new - written,
                cache_read_tokens=cached_tokens,
                cache_write_tokens=written,
                output_tokens=used if maximum is None else min(used, maximum),
            ),
            is_rough=read.is_rough,
            known=read.known,
            counted=read.counted,
        )

    def learn(
        self,
        profile: Profile,
        facts: RequestFacts,
        session: str,
        usage: Usage,
        estimate: Estimate,
        *,
        is_edited: bool = False,
    ) -> None:
        """Learn from the usage of a complete answer; from one that was counted here, only how long answers are.

        To be called before the session's next estimate, with the facts of the attempt (their text is not needed) and
        what was estimated of it. `is_edited`: the provider has taken something out, so that its tokens are not the
        body's.
        """
        input_tokens = usage.total_input_tokens
        if input_tokens <= 0:
            return
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = _Session()
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(session)
        model = self._model(profile, facts.model)
        anchor = _anchor_of(facts, known)
        model.outputs.learn(usage.output_tokens)
        known.outputs.learn(usage.output_tokens)
        if not usage.reported:
            return  # what was estimated is no base for the next estimate
        if not is_edited:
            _learn_model(model, facts, estimate, input_tokens)
        if anchor is not None:
            known.anchors.remove(anchor)
        known.anchors.append(
            _Anchor(
                model=facts.model,
                messages=len(facts.message_bytes),
                messages_bytes=sum(facts.message_bytes),
                preamble_bytes=facts.preamble_bytes,
                media=facts.media,
                input_tokens=input_tokens,
                output_tokens=usage.output_tokens,
                cached=usage.cache_read_tokens > 0 or usage.cache_write_tokens > 0,
            )
        )
        del known.anchors[:-_CONVERSATIONS]

    def charged(self, profile: Profile, facts: RequestFacts, usage: Usage) -> Demand:
        """What an attempt with this usage took from the limits, by the profile's charge."""
        charged_input = usage.total_input_tokens
        if profile.charge.input is InputCharge.UNCACHED:
            charged_input -= usage.cache_read_tokens
        output = usage.output_tokens
        if profile.charge.output is OutputCharge.MAX_TOKENS:
            maximum = facts.max_output_tokens
            output = max(output, profile.charge.default_output_tokens) if maximum is None else maximum
        return _demand(charged_input, output)

    def count(self, text: str) -> int:
        """Tokens of a text that the provider did not count: by tiktoken where it is short, else by its bytes."""
        size_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if size_bytes > _COUNTED_BYTES:
            return round(size_bytes / _USUAL_BYTES_PER_TOKEN)
        return self._tokenizer.count(text)

    def _model(self, profile: Profile, name: str) -> _Model:
        key = profile.name, name
        model = self._models.get(key)
        if model is None:
            tokens = profile.tokens
            model = self._models[key] = _Model(tokens.scale, tokens.bytes_per_token / tokens.scale)
            if len(self._models) > _MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return model

    def _input(self, model: _Model, facts: RequestFacts, anchor: _Anchor | None, *, rough: bool) -> _Input:
        if anchor is None:
            return self._part(model, facts, _WHOLE, facts.prompt_bytes, facts.media, known=0, rough=rough)
        known = anchor.input_tokens
        first_new = 0 if facts.continues else anchor.messages
        new, sizes = facts.messages[first_new:], facts.message_bytes[first_new:]
        answers = next((index for index, raw in enumerate(new) if not is_answer(raw)), len(new))
        if facts.continues:
            known += anchor.output_tokens
        elif answers:
            # The last answer comes back as input; the provider has counted it. Thinking may stay behind: never
            # more than twice what its bytes say.
            known += min(anchor.output_tokens, round(2 * sum(sizes[:answers]) / model.bytes_per_token))
        media = facts.media if facts.continues else max(0, facts.media - anchor.media)
        return self._part(
            model,
            facts,
            first_new + answers,
            sum(sizes[answers:]),
            media,
            known=known,
            cached=anchor.input_tokens if anchor.cached else 0,
            rough=rough,
        )

    def _part(
        self,
        model: _Model,
        facts: RequestFacts,
        start: int,
        size_bytes: int,
        media: int,
        *,
        known: int,
        cached: int = 0,
        rough: bool,
    ) -> _Input:
        """What the provider knows already, and what begins at a message."""
        raws = (*facts.preamble, *facts.messages) if start == _WHOLE else facts.messages[start:]
        tokens = known + media * _MEDIA_TOKENS
        is_countable = size_bytes <= _COUNTED_BYTES and (self._tokenizer.is_ready() if raws else not size_bytes)
        counted = facts.counts.get(start) if is_countable else None
        if not is_countable or (counted is None and rough):
            by_bytes = round(size_bytes / model.bytes_per_token)
            return _Input(tokens + by_bytes, cached, 0, known, is_rough=bool(is_countable and raws))
        if counted is None:
            counted = self._tokenizer.count("\n".join(map(text_of, raws))) if raws else 0
            facts.counts[start] = counted
        return _Input(tokens + round(counted * model.ratio), cached, counted, known)


def _learn_model(model: _Model, facts: RequestFacts, estimate: Estimate, real: int) -> None:
    """Compare what was counted with what the provider counted."""
    if facts.media:
        return
    if not facts.continues and real >= _TELLING_TOKENS:
        sample = _within(_BYTES_PER_TOKEN_BOUNDS, facts.prompt_bytes / real)
        model.bytes_per_token += _LEARNING * (sample - model.bytes_per_token)
        model.lessons += 1
    new = real - estimate.known
    if estimate.counted >= _TELLING_TOKENS and new >= _TELLING_TOKENS:
        sample = _within(_RATIO_BOUNDS, new / estimate.counted)
        model.ratio += _LEARNING * (sample - model.ratio)


def _anchor_of(facts: RequestFacts, session: _Session) -> _Anchor | None:
    """The last usage of the conversation that these messages continue or repeat."""
    for anchor in reversed(session.anchors):
        if anchor.model != facts.model:
            continue
        if facts.continues:
            return anchor
        if (
            anchor.messages <= len(facts.message_bytes)
            and abs(anchor.preamble_bytes - facts.preamble_bytes) <= _SAME_BYTES
            and abs(anchor.messages_bytes - sum(facts.message_bytes[: anchor.messages])) <= _SAME_BYTES
        ):
            return anchor
    return None


def _demand(input_tokens: int, output_tokens: int) -> Demand:
    return Demand(input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens)


def _within(bounds: tuple[float, float], value: float) -> float:
    low, high = bounds
    return min(max(value, low), high)
