"""What a pool has learned about its provider, as values that outlive a run.

Levels are not among them: how much of a limit is left is told by the first response.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Literal

from msgspec import Meta, Struct, ValidationError, convert, to_builtins

from hivemind_addon.api.snapshot import LearnedView
from hivemind_addon.api.ticket import Dimension, PoolKey
from hivemind_addon.proxy.core.limiter_models import HiddenLimit
from hivemind_addon.proxy.core.retry import LeavingTime

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


@dataclass(frozen=True, slots=True)
class LearnedPool:
    """One pool."""

    key: PoolKey
    throttles: HiddenLimit | None
    """What explains its rate limits' refusals best."""
    overloads: HiddenLimit | None
    """The same of its refusals for overload."""
    meters: tuple[LearnedMeter, ...]
    common: tuple[str, ...] = ()
    """What of it is a limit of all the account's pools: `concurrency`, `rate`; each meter says so itself."""

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

    def to_json(self) -> object:
        """Plain JSON values."""
        return to_builtins(_SavedPool.of(self))


@dataclass(frozen=True, slots=True)
class Saved:
    """All that a scheduler has learned."""

    pools: tuple[LearnedPool, ...]
    account_by_name: Mapping[tuple[str, str], str]
    """The account that stands for all of an organisation, by host and organisation."""
    same_account: Mapping[str, str]
    """The account that stands for another one, by that one."""
    patience: Mapping[str, list[LeavingTime]] = field(default_factory=dict)
    """Of clients that do not tell theirs, by their kind."""

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        names = [
            _SavedName(host=host, name=name, account=account) for (host, name), account in self.account_by_name.items()
        ]
        saved = _SavedFile(
            version=_VERSION,
            pools=[_SavedPool.of(pool) for pool in self.pools],
            accounts=names,
            same_account=dict(self.same_account),
            patience=dict(self.patience),
        )
        plain: dict[str, object] = to_builtins(saved)
        return plain


class _SavedPool(Struct):
    """A pool in a file."""

    host: str
    account: str
    model_group: str
    meters: list[LearnedMeter]
    throttles: HiddenLimit | None = None
    overloads: HiddenLimit | None = None
    common: list[str] = []
    """What was saved before there was such a thing says nothing about it."""

    @classmethod
    def of(cls, pool: LearnedPool) -> "_SavedPool":
        key = pool.key
        return cls(
            host=key.host,
            account=key.account,
            model_group=key.model_group,
            meters=list(pool.meters),
            throttles=pool.throttles,
            overloads=pool.overloads,
            common=list(pool.common),
        )

    def learned(self) -> LearnedPool:
        return LearnedPool(
            key=PoolKey(self.host, self.account, self.model_group),
            throttles=self.throttles,
            overloads=self.overloads,
            meters=tuple(self.meters),
            common=tuple(self.common),
        )


class _SavedName(Struct):
    """Which account an organisation's name stands for."""

    host: str
    name: str
    account: str


class _SavedFile(Struct):
    """What is in a file."""

    version: Literal[1, 2]
    pools: list[_SavedPool]
    accounts: list[_SavedName]
    same_account: dict[str, str]
    patience: dict[str, list[LeavingTime]] = {}
    """Files of earlier versions have none."""


def read_saved(saved: object) -> Saved:
    """What `Saved.to_json` gave. Raises UnreadableError."""
    file = _converted(saved, _SavedFile)
    same = file.same_account
    return Saved(
        pools=tuple(pool.learned() for pool in file.pools),
        account_by_name={(one.host, one.name): one.account for one in file.accounts},
        # Circles are never saved, but a file may have been edited.
        same_account={credential: account for credential, account in same.items() if account not in same},
        patience=file.patience,
    )


def read_pool(saved: object) -> LearnedPool:
    """What `to_json` gave. Raises UnreadableError."""
    return _converted(saved, _SavedPool).learned()


def _converted[Kind](saved: object, kind: type[Kind]) -> Kind:
    try:
        return convert(saved, kind)
    except ValidationError as error:
        raise UnreadableError(str(error)) from error
