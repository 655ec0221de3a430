"""Values that a pool has learned about its provider and that outlive a run.

Levels are not among them: the first response reports how much of a limit is left.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

from msgspec import Meta, Struct, ValidationError, convert, json
from msgspec.structs import replace

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit, Sent
from hivemind_addon.kernel.retry import LeavingTime
from hivemind_addon.kernel.values.snapshot import LearnedView, MeterView
from hivemind_addon.kernel.values.ticket import Dimension, PoolKey

_VERSION: Literal[2] = 2
"""Version 1 had no hidden limits in today's form."""
_OLD_S, _MOST_AGE_S = 86_400.0, 7 * 86_400.0
"""A limit that no attempt has tested for so long is half trusted, then dropped."""
_HOUR_S = 3_600.0
_MOST = 1e15
_MOST_WINDOW_S = 32 * 86_400.0


class MeterKind(Enum):
    """How a limit refills."""

    BUCKET = "bucket"
    WINDOW = "window"
    UNKNOWN = "unknown"


class UnreadableError(Exception):
    """Saved state that was cut, edited, or written by another version."""


@dataclass(frozen=True, slots=True)
class LearnedMeter:
    """A limit that headers report."""

    name: str
    dimension: Dimension
    kind: MeterKind
    limit: Annotated[float, Meta(ge=1, le=_MOST)]
    window_s: Annotated[float, Meta(ge=0.01, le=_MOST_WINDOW_S)]
    is_separate: bool = False
    """No other pool of the account draws on the limit, as headers have shown."""


class LearnedPool(Struct, frozen=True, kw_only=True):
    """Limits of a pool."""

    host: str
    account: str
    model_group: str
    meters: tuple[LearnedMeter, ...]
    throttles: HiddenLimit | None = None
    """Hidden limit that best explains refusals by rate limits; None: no limit does."""
    overloads: HiddenLimit | None = None
    """Hidden limit that best explains refusals for overload; None: no limit does."""
    throttled_units: float = 0.0
    """Units that the hidden limit of `throttles` held when the state was taken; 0: not known."""
    throttled_for_s: float = 0.0
    """Seconds from then until all of these are free."""
    tested_at: float = 0.0
    """Epoch seconds of the last answer, in whole hours; 0: unknown."""
    is_old: bool = False
    """Half trusted."""
    why_separate: str = ""
    """Why the hidden limits are not the account's; empty: they are."""

    @property
    def key(self) -> PoolKey:
        """The pool that has these limits."""
        return PoolKey(self.host, self.account, self.model_group)

    def as_of(self, answered_s: float | None, wall: float) -> "LearnedPool":
        """The limits with their age, at `wall` in epoch seconds. `answered_s`: seconds since the last answer."""
        if answered_s is None or not wall:
            return self
        return replace(self, tested_at=(wall - answered_s) // _HOUR_S * _HOUR_S, is_old=False)

    def aged(self, wall: float) -> "LearnedPool":
        """The limits as far as they are still to be trusted."""
        age_s = wall - self.tested_at if self.tested_at and wall else 0.0
        if age_s >= _MOST_AGE_S:
            return replace(self, throttles=None, overloads=None, meters=(), why_separate="")
        return replace(self, is_old=age_s >= _OLD_S)

    def held(self, now: float) -> Sent | None:
        """The units that the hidden limit of `throttles` holds, as an attempt; None: not known."""
        limit, units = self.throttles, self.throttled_units
        if limit is None or limit.window_s is None or units <= 0:
            return None
        lasts_s = limit.window_s * units / limit.amount if limit.is_bucket else limit.window_s
        return Sent(-1, now + self.throttled_for_s - lasts_s, (units, units, units), in_flight=1)

    def views(self, throttles: MeterView | None, overloads: MeterView | None) -> tuple[LearnedView, ...]:
        """The hidden limits in words, and as these meters."""
        return tuple(
            LearnedView(name=name, text=str(limit), meter=meter)
            for name, limit, meter in (
                ("rate limit", self.throttles, throttles),
                ("overload", self.overloads, overloads),
            )
            if limit is not None
        )


class NamedAccount(Struct, frozen=True):
    """The account that stands for a whole organisation."""

    host: str
    name: str
    """Of the organisation."""
    account: str


class Saved(Struct, frozen=True, kw_only=True):
    """All values that a scheduler has learned, as stored in a file."""

    version: Literal[1, 2] = _VERSION
    pools: tuple[LearnedPool, ...]
    accounts: tuple[NamedAccount, ...]
    same_account: dict[str, str]
    """The account that stands for another, by that other account."""
    patience: dict[str, list[LeavingTime]] = {}
    """Of clients that do not state their patience, by product and agent. Absent in files of earlier versions."""

    def to_json(self) -> dict[str, object]:
        """Convert to plain JSON values."""
        plain: dict[str, object] = json.decode(json.encode(self))
        return plain


def read_saved(saved: object) -> Saved:
    """Parse the result of `to_json`. Raises UnreadableError."""
    try:
        read = convert(saved, Saved)
    except ValidationError as error:
        raise UnreadableError(str(error)) from error
    # Circles are never saved, but a file may have been edited.
    same = read.same_account
    same = {account: first for account, first in same.items() if first not in same}
    return replace(read, version=_VERSION, same_account=same)
