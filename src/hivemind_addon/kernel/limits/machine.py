"""A machine that serves all models of an account: which models the memory holds, and what a change of the model costs.

    a model is held   if fewer than `models` others were used since the last use
    a change          a call of a model that is not held: the machine loads the model for `load_s`, other calls wait

Answers show both numbers. The first answer of a model that returns is slower than the model's answers without a change,
or is not. An answer beside another model's older attempt shows that both models are held. So where the memory holds all
models, no change costs anything, and each model may have slots of its own.

**The order.** After a change the tickets of held models lead for a *turn* of five loads, by less than two classes, so a
critical ticket of another model pays a change at once. Then the order is as fair as ever, so every wait is bounded.
llama-swap and disks batch in the same way (Iyer and Druschel 2001: "anticipatory scheduling"). Turns are short until a
change was seen to cost a load, and the first model returns after one call of the second, which shows the cost.

**A change waits** while attempts of `models` other models are in flight, and no ticket behind the change goes: always
once a change was seen to cost a load, before only in a turn. In a turn a change also waits for a quarter of a load for
the next call of the model that was used last.
"""

from dataclasses import dataclass

from hivemind_addon.kernel.order.entry import InFlight
from hivemind_addon.kernel.values.ticket import Attempt

_NEVER, _LONG_AGO = float("inf"), float("-inf")
_TURN = 5.0
"""Loads that a turn lasts: changes take a sixth of the time."""
_FIRST_TURN = 1.5
"""The same until a return has shown that changes cost a load."""
_MOST_TURN_S = 120.0
"""No turn is longer: clients wait for some minutes."""
_LEAD_S = 45.0
"""Below two classes (`OrderSettings.class_lead_s`)."""
_SLOWER = 1.25
"""A return was slower if it took so many times as long as an answer without a change."""
_NEWEST = 0.25
"""Weight of the newest answer in the mean."""
_PAUSE = 0.25
"""Share of a load for which a change waits for the model's next call."""
_KEPT_S = 240.0
"""Ollama unloads a model that nobody used for five minutes (FAQ of 2026), which is no change."""


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
    usual_s: float = 0.0
    """Mean seconds to the first byte of answers without a change; 0: there was none."""
    others: int = 0
    """How many other models were used between the last two uses; 0: the next answer shows nothing."""
    ready_at: float = _LONG_AGO
    """The first answer since the model was used after another model; infinite: not yet."""
    ended_at: float = _LONG_AGO
    """When the last attempt ended."""

    def stayed(self, took_s: float) -> None:
        """Learn from an answer without a change."""
        self.usual_s += (took_s - self.usual_s) * (_NEWEST if self.usual_s else 1.0)


class ModelMachine:
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
        """Infinite: the model is being loaded."""

    def __repr__(self) -> str:
        return f"<ModelMachine with {self.models} models, {self._load_s:.1f} s a change>"

    @property
    def has_slots_each(self) -> bool:
        """Whether a held model shares no slots with others."""
        return self.models > 1 and not self.settings.shares_slots

    def lag_s(self, flights: InFlight, now: float) -> float:
        """How far a model's next ticket stands behind those of held models, in seconds of the order."""
        if self._others_since(flights) < self.models:
            return 0.0
        if not self._is_full and flights in self._used and self._used[flights].usual_s:
            return -_LEAD_S  # the return shows whether a change costs anything
        return _LEAD_S if now < self._turn_until else 0.0

    @property
    def _turn_until(self) -> float:
        return self._turn_from + min((_TURN if self._is_full else _FIRST_TURN) * self._load_s, _MOST_TURN_S)

    def opens_at(self, flights: InFlight, now: float) -> float:
        """When a model's next ticket may go; infinite: at the end of another model's attempt."""
        if self._others_since(flights) < self.models:
            return now
        if sum(len(other) > 0 for other in self._used if other is not flights) >= self.models:
            return _NEVER if self._is_full else max(now, self._turn_until)
        last = next(reversed(self._used.values()), None)
        if last is None or self.lag_s(flights, now) <= 0:
            return now
        return max(now, last.ended_at + _PAUSE * self._load_s)

    def _others_since(self, flights: InFlight) -> int:
        """The other models used since a model's last use."""
        used = len(self._used)
        return used - 1 - [*self._used].index(flights) if flights in self._used else used

    def sent(self, flights: InFlight, now: float) -> None:
        """Note an attempt, before the attempt is in flight."""
        others, is_new = self._others_since(flights), flights not in self._used
        model = self._used[flights] = _Model() if is_new else self._used.pop(flights)
        if others or is_new:
            model.others = others if now < model.ended_at + _KEPT_S else 0
            model.ready_at = _NEVER
        if others >= self.models or is_new:
            self._turn_from = _NEVER

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
            if attempt.admitted_at >= self._turn_from:
                model.stayed(now - attempt.admitted_at)
            return
        took_s = now - max((attempt.admitted_at, *(self._used[other].ended_at for other in others)))
        model.ready_at, self._turn_from = now, min(self._turn_from, now)
        if model.others and model.usual_s and not beside:
            self._returned(model, took_s)
        elif beside:
            model.stayed(took_s)
        elif not self._is_full:
            self._load_s = max(self._load_s, took_s)

    def _returned(self, model: _Model, took_s: float) -> None:
        """Learn from the first answer of a model that was used before."""
        is_slow = took_s > _SLOWER * model.usual_s
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
                self._turn_from = min(self._turn_from, now)

    def served_s(self, flights: InFlight, attempt: Attempt, now: float) -> float:
        """How long an attempt was served until now, without the load before."""
        model, held_s = self._used.get(flights), now - attempt.admitted_at
        if model is None or attempt.admitted_at >= model.ready_at:
            return held_s
        return min(held_s, max(0.0, now - model.ready_at) + model.usual_s)

    def left(self, flights: InFlight) -> None:
        """Forget a model."""
        self._used.pop(flights, None)
        self._turn_from = _LONG_AGO
