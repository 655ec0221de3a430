"""A machine that serves all models of an account: which models the memory holds, and what a change of the model costs.

    a model is held   if fewer than `models` others were used since the last use
    a change          a call of a model that is not held: the machine loads the model for `load_s`, other calls wait

Answers show both numbers. The first answer of a model that returns is slower than the model's answers without a change,
or is not. An answer beside another model's older attempt shows that both models are held. So where the memory holds all
models, no change costs anything, and each model may have slots of its own.

**The order.** After a change the tickets of held models lead for a *turn* of five loads, by less than two classes, so a
critical ticket of another model pays a change at once. Then the order is as fair as ever, so every wait is bounded.
llama-swap and disks batch in the same way (Iyer and Druschel 2001: "anticipatory scheduling"). The first turn is
short, and the first model returns after one call of the second, which shows whether changes cost anything.

**A change waits** while attempts of `models` other models are in flight, and no ticket behind the change goes: always
once a change was seen to cost a load, before only in a turn. In a turn a change also waits, for at most half a load,
for the next call of the model that was used last, where three of four calls came so soon.
"""

from collections import deque
from dataclasses import dataclass, field

from hivemind_addon.kernel.order.entry import InFlight
from hivemind_addon.kernel.values.ticket import Attempt

_NEVER, _LONG_AGO = float("inf"), float("-inf")
_TURN = 5.0
"""Loads that a turn lasts: changes take a sixth of the time."""
_FIRST_TURN = 1.5
"""The same until a return has shown whether changes cost anything."""
_MOST_TURN_S = 120.0
"""No turn is longer: clients wait for some minutes."""
_MOST_LEAD_S = 45.0
"""Below two classes (`OrderSettings.class_lead_s`)."""
_REMEMBERED = 8
_SLOWER = 1.25
"""A return was slower if it took so many times as long as each remembered answer: 1 in 9 by chance."""
_GAPS = 3.0
"""A model waits so many usual gaps for its next call, instead of another model's load."""
_KEPT_S = 240.0
"""Ollama unloads a model that nobody used for five minutes (FAQ of 2026), which is no change."""


def _newest() -> deque[float]:
    return deque(maxlen=_REMEMBERED)


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """What is assumed of a machine that serves several models, until answers show more."""

    models: int = 1
    """How many models the machine holds at once."""
    load_s: float = 2.0
    """Seconds that a change of the model takes."""
    shares_slots: bool = False
    """Whether held models share the slots of `concurrency`; else each has them to itself."""


@dataclass(slots=True)
class _Model:
    stays_s: deque[float] = field(default_factory=_newest)
    """Seconds to the first byte of answers without a change."""
    gaps_s: deque[float] = field(default_factory=_newest)
    """Seconds from the model's last attempt to the next call."""
    others: int = 0
    """How many other models were used between the last two uses; 0: the next answer shows nothing."""
    changed_at: float = _LONG_AGO
    """When the model was used after another model."""
    ready_at: float = _LONG_AGO
    """The first answer since then; infinite: not yet."""
    first_s: float = 0.0
    """Seconds to the model's first answer of all."""
    ended_at: float = _LONG_AGO
    """When the last attempt ended."""

    @property
    def usual_s(self) -> float:
        """The mean without a change."""
        return sum(self.stays_s) / len(self.stays_s) if self.stays_s else 0.0

    def comes_back_until(self, load_s: float) -> float:
        """Until when the next call is worth waiting for."""
        gap_s = sorted(self.gaps_s)[len(self.gaps_s) * 3 // 4] if self.gaps_s else 0.0
        return self.ended_at + min(max(_GAPS * gap_s, load_s / 8), load_s / 2) if gap_s <= load_s / 2 else _LONG_AGO


class Machine:
    """What the attempts of an account have shown of the machine. The pool's attempts in flight name a model."""

    def __init__(self, settings: MachineSettings) -> None:
        self.settings = settings
        self.models = settings.models
        """How many models the machine holds at once, as far as known."""
        self._load_s = settings.load_s
        self._is_full = False
        """Whether a further model was seen to cost a load."""
        self._used: dict[InFlight, _Model] = {}
        """The last used last."""
        self._slow_in_a_row = 0
        """Returns of models that were held before."""
        self._turn_from = _LONG_AGO

    def __repr__(self) -> str:
        return f"<Machine with {self.models} models, {self._load_s:.1f} s a change>"

    @property
    def has_slots_each(self) -> bool:
        """Whether a held model shares no slots with others."""
        return self.models > 1 and not self.settings.shares_slots

    def lag_s(self, flights: InFlight, now: float) -> float:
        """How far a model's next ticket stands behind those of held models, in seconds of the order."""
        if self._others_since(flights) < self.models:
            return 0.0
        lead_s = min(_TURN * self._load_s, _MOST_LEAD_S)
        if not self._is_full and flights in self._used and self._used[flights].stays_s:
            return -lead_s  # the return shows whether a change costs anything
        return lead_s if now < self._turn_until else 0.0

    @property
    def _turn_until(self) -> float:
        for flights, model in self._used.items():
            if model.changed_at == self._turn_from and model.ready_at == _NEVER and flights:
                return _NEVER
        # A machine that holds more than was assumed may hold one more.
        is_open = not self._is_full and (len(self._used) <= self.models or self.models > self.settings.models)
        return self._turn_from + min((_FIRST_TURN if is_open else _TURN) * self._load_s, _MOST_TURN_S)

    def opens_at(self, flights: InFlight, now: float) -> float:
        """When a model's next ticket may go; infinite: at the end of another model's attempt."""
        if self._others_since(flights) < self.models:
            return now
        if busy := sum(len(other) > 0 for other in self._used if other is not flights):
            kept_until = _NEVER if self._is_full else self._turn_until
            return max(now, kept_until) if busy >= self.models else now
        last = next(reversed(self._used.values()), None)
        return now if last is None or self.lag_s(flights, now) <= 0 else max(now, last.comes_back_until(self._load_s))

    def _others_since(self, flights: InFlight) -> int:
        """The other models used since a model's last use."""
        used = len(self._used)
        return used - 1 - [*self._used].index(flights) if flights in self._used else used

    def sent(self, flights: InFlight, came_at: float, now: float) -> None:
        """Note an attempt, before the attempt is in flight. `came_at`: the ticket's arrival."""
        others, is_new = self._others_since(flights), flights not in self._used
        model = self._used[flights] = _Model() if is_new else self._used.pop(flights)
        if not (is_new or flights):
            model.gaps_s.append(max(0.0, came_at - model.ended_at))
        if others or is_new:
            model.others = others if now < model.ended_at + _KEPT_S else 0
            model.changed_at, model.ready_at = now, _NEVER
        if others >= self.models or is_new:
            self._turn_from = now

    def answered(self, flights: InFlight, attempt: Attempt, now: float) -> None:
        """Learn from the beginning of an attempt's answer."""
        if (model := self._used.get(flights)) is None:
            return
        others = [other for other in self._used if other is not flights]
        # Machines serve in the order of arrival.
        beside = sum(any(one.stamp < attempt.stamp or one.has_passed for one in other.attempts) for other in others)
        if beside >= self.models:
            self.models, self._is_full = beside + 1, False
        if model.ready_at < _NEVER:
            if model.ready_at <= attempt.admitted_at < model.ended_at + _KEPT_S:
                model.stays_s.append(now - attempt.admitted_at)
                if not self._is_full:
                    self._load_s = max(self._load_s, model.first_s - model.stays_s[-1])
            return
        took_s = now - max((model.changed_at, *(self._used[other].ended_at for other in others)))
        model.first_s = model.first_s or took_s
        if model.changed_at == self._turn_from:
            self._turn_from = now
        model.ready_at = now
        if model.others and model.stays_s and not beside:
            self._returned(model, took_s)
        elif model.others and (beside or model.others < self.models):
            model.stays_s.append(now - attempt.admitted_at)

    def _returned(self, model: _Model, took_s: float) -> None:
        """Learn from the first answer of a model that was used before."""
        is_slow = took_s > _SLOWER * max(model.stays_s)
        self._slow_in_a_row = self._slow_in_a_row + 1 if is_slow else 0
        if is_slow and (model.others >= self.models or self._slow_in_a_row > 1):
            extra_s = took_s - model.usual_s
            self._load_s = (self._load_s + extra_s) / 2 if self._is_full else extra_s
            self.models, self._is_full = min(self.models, model.others), True
        elif not is_slow and model.others >= self.models:
            self.models, self._is_full = model.others + 1, False

    def ended(self, flights: InFlight, attempt: Attempt, now: float) -> None:
        """Note the end of an attempt; without an answer the model's next answer shows nothing."""
        if model := self._used.get(flights):
            model.ended_at = now
            if not attempt.has_passed:
                model.others = 0

    def served_s(self, flights: InFlight, attempt: Attempt, now: float) -> float:
        """How long an attempt was served until now, without the load before."""
        model, held_s = self._used.get(flights), now - attempt.admitted_at
        if model is None or attempt.admitted_at >= model.ready_at:
            return held_s
        return min(held_s, max(0.0, now - model.ready_at) + model.usual_s)

    def left(self, flights: InFlight) -> None:
        """Forget a model."""
        self._used.pop(flights, None)
