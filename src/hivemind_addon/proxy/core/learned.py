"""What a pool has learned about its provider, as values that outlive a run.

Levels are not among them: how much of a limit is left is told by the first response.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum

from msgspec import structs

from hivemind_addon.api.snapshot import LearnedView
from hivemind_addon.api.ticket import Dimension, PoolKey
from hivemind_addon.proxy.core.hidden_limits import HiddenLimit
from hivemind_addon.proxy.core.patience import LeavingTime

_VERSION = 2
"""Version 1 told of no hidden limits as they are known now."""
COMMON_CONCURRENCY, COMMON_RATE = "concurrency", "rate"
_MOST = 1e15
_MOST_PATIENCE_S = 86_400.0
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
    limit: float
    window_s: float
    failures_are_free: bool
    stale_s: float
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

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            **structs.asdict(self.key),
            "throttles": None if self.throttles is None else asdict(self.throttles),
            "overloads": None if self.overloads is None else asdict(self.overloads),
            "common": list(self.common),
            "meters": [
                {**asdict(meter), "dimension": meter.dimension.value, "kind": meter.kind.value} for meter in self.meters
            ],
        }


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
        return {
            "version": _VERSION,
            "pools": [pool.to_json() for pool in self.pools],
            "accounts": [
                {"host": host, "name": name, "account": account}
                for (host, name), account in self.account_by_name.items()
            ],
            "same_account": dict(self.same_account),
            "patience": {client: [asdict(time) for time in times] for client, times in self.patience.items()},
        }


def read_saved(saved: object) -> Saved:
    """What `Saved.to_json` gave. Raises UnreadableError."""
    data = _mapping(saved)
    version = data.get("version")
    if version not in (1, _VERSION):
        raise UnreadableError(f"version {str(version)[:20]} is not {_VERSION}")
    accounts = [_mapping(account) for account in _list(data, "accounts")]
    same = _mapping(data.get("same_account"))
    return Saved(
        pools=tuple(read_pool(pool) for pool in _list(data, "pools")),
        account_by_name={
            (_text(account, "host"), _text(account, "name")): _text(account, "account") for account in accounts
        },
        # Circles are never saved, but a file may have been edited.
        same_account={
            credential: _text(same, credential) for credential in same if _text(same, credential) not in same
        },
        # Files of earlier versions have none.
        patience=_read_patience(_mapping(data.get("patience", {}))),
    )


def read_pool(saved: object) -> LearnedPool:
    """What `to_json` gave. Raises UnreadableError."""
    data = _mapping(saved)
    return LearnedPool(
        key=PoolKey(*(_text(data, name) for name in ("host", "account", "model_group"))),
        throttles=_read_hidden(data.get("throttles")),
        overloads=_read_hidden(data.get("overloads")),
        meters=tuple(_read_meter(meter) for meter in _list(data, "meters")),
        # What was saved before there was such a thing says nothing about it.
        common=tuple(str(name) for name in _list(data, "common")) if "common" in data else (),
    )


def _read_patience(data: Mapping[str, object]) -> dict[str, list[LeavingTime]]:
    return {
        client: [
            LeavingTime(
                after_s=_number(time, "after_s", 1, _MOST_PATIENCE_S),
                left=_number(time, "left", 0, _MOST),
                stayed=_number(time, "stayed", 0, _MOST),
            )
            for time in map(_mapping, _list(data, client))
        ]
        for client in data
    }


def _read_hidden(saved: object) -> HiddenLimit | None:
    if saved is None:
        return None
    data = _mapping(saved)
    return HiddenLimit(
        measure=int(_number(data, "measure", 0, 2)),
        amount=_number(data, "amount", 1, _MOST),
        window_s=_number_or_none(data, "window_s", 0.01, _MOST_WINDOW_S),
        is_bucket=data.get("is_bucket") is True,
    )


def _read_meter(saved: object) -> LearnedMeter:
    data = _mapping(saved)
    return LearnedMeter(
        name=_text(data, "name"),
        dimension=_member(Dimension, data, "dimension"),
        kind=_member(MeterKind, data, "kind"),
        limit=_number(data, "limit", 1, _MOST),
        window_s=_number(data, "window_s", 0.01, _MOST_WINDOW_S),
        failures_are_free=data.get("failures_are_free") is True,
        stale_s=_number(data, "stale_s", 0, 60),
        is_common=data.get("is_common") is True,
    )


def _mapping(saved: object) -> Mapping[str, object]:
    if not isinstance(saved, dict):
        raise UnreadableError(f"{str(saved)[:60]!r} is not an object")
    return saved


def _list(data: Mapping[str, object], name: str) -> list[object]:
    value = data.get(name)
    if not isinstance(value, list):
        raise UnreadableError(f"{name} is not a list")
    return value


def _text(data: Mapping[str, object], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise UnreadableError(f"{name} is not a text")
    return value


def _member[Kind: Enum](kinds: type[Kind], data: Mapping[str, object], name: str) -> Kind:
    try:
        return kinds(data.get(name))
    except ValueError as error:
        raise UnreadableError(f"{name}: {error}") from error


def _number(data: Mapping[str, object], name: str, least: float, most: float) -> float:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UnreadableError(f"{name} is not a number")
    if not least <= value <= most:
        raise UnreadableError(f"{name} is {value}")
    return float(value)


def _number_or_none(data: Mapping[str, object], name: str, least: float, most: float) -> float | None:
    return None if data.get(name) is None else _number(data, name, least, most)
