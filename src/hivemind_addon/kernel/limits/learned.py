"""What a pool has learned about its provider, as values that outlive a run.

Levels are not among them: how much of a limit is left is told by the first response.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

from msgspec import Meta, Struct, ValidationError, convert, json
from msgspec.structs import replace

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.retry import LeavingTime
from hivemind_addon.kernel.values.snapshot import LearnedView
from hivemind_addon.kernel.values.ticket import Dimension, PoolKey

_VERSION: Literal[2] = 2
"""Version 1 told of no hidden limits as they are known now."""
COMMON_CONCURRENCY, COMMON_RATE = "concurrency", "rate"
_MOST = 1e15
_MOST_WINDOW_S = 32 * 86_400.0


class MeterKind(Enum):
    """How a limit comes back."""

    BUCKET = "bucket"
    WINDOW = "window"
    UNKNOWN = "unknown"


class UnreadableError(Exception):
    """Saved state that is not what was saved: cut, edited, or of another version."""


@dataclass(frozen=True, slots=True)
class LearnedMeter:
    """One limit that headers tell of."""

    name: str
    dimension: Dimension
    kind: MeterKind
    limit: Annotated[float, Meta(ge=1, le=_MOST)]
    window_s: Annotated[float, Meta(ge=0.01, le=_MOST_WINDOW_S)]
    failures_are_free: bool
    stale_s: Annotated[float, Meta(ge=0, le=60)]
    is_common: bool = False
    """Other pools of the account draw on it, too."""


class LearnedPool(Struct, frozen=True, kw_only=True):
    """One pool."""

    host: str
    account: str
    model_group: str
    meters: tuple[LearnedMeter, ...]
    throttles: HiddenLimit | None = None
    """What explains its rate limits' refusals best; None: nothing does."""
    overloads: HiddenLimit | None = None
    """The same of its refusals for overload."""
    common: tuple[str, ...] = ()
    """What of it is a limit of all the account's pools: `concurrency`, `rate`; each meter says so itself.

    What was saved before there was such a thing says nothing about it.
    """

    @property
    def key(self) -> PoolKey:
        """Whose it is."""
        return PoolKey(self.host, self.account, self.model_group)

    @property
    def views(self) -> tuple[LearnedView, ...]:
        """In words, what no header told."""
        return tuple(
            LearnedView(name=name, text=f"{limit}{', all models together' if kind in self.common else ''}")
            for name, kind, limit in (
                ("rate limit", COMMON_RATE, self.throttles),
                ("overload", COMMON_CONCURRENCY, self.overloads),
            )
            if limit is not None
        )


class NamedAccount(Struct, frozen=True):
    """The account that stands for all of an organisation."""

    host: str
    name: str
    """The organisation's."""
    account: str


class Saved(Struct, frozen=True, kw_only=True):
    """All that a scheduler has learned, as it stands in a file."""

    version: Literal[1, 2] = _VERSION
    pools: tuple[LearnedPool, ...]
    accounts: tuple[NamedAccount, ...]
    same_account: dict[str, str]
    """The account that stands for another one, by that one."""
    patience: dict[str, list[LeavingTime]] = {}
    """Of clients that do not tell theirs, by their kind. Files of earlier versions have none."""

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        plain: dict[str, object] = json.decode(json.encode(self))
        return plain


def read_saved(saved: object) -> Saved:
    """What `to_json` gave. Raises UnreadableError."""
    try:
        read = convert(saved, Saved)
    except ValidationError as error:
        raise UnreadableError(str(error)) from error
    # Circles are never saved, but a file may have been edited.
    same = read.same_account
    same = {account: first for account, first in same.items() if first not in same}
    return replace(read, version=_VERSION, same_account=same)
