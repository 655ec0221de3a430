"""What a pool has learned about its provider, as values that outlive a run.

Levels are not among them: how much of a limit is left is told by the first response.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum

from msgspec import structs

from hivemind_addon.core.snapshot import LearnedView
from hivemind_addon.core.ticket import Dimension, PoolKey

_VERSION = 1
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
    limit: float
    window_s: float
    failures_are_free: bool
    stale_s: float


@dataclass(frozen=True, slots=True)
class LearnedPool:
    """One pool."""

    key: PoolKey
    ceiling: int | None
    """The concurrency that the provider takes."""
    pace_per_s: float | None
    quota: int | None
    quota_window_s: float
    meters: tuple[LearnedMeter, ...]

    @property
    def views(self) -> tuple[LearnedView, ...]:
        """In words, what no header told."""
        told = []
        if self.ceiling is not None:
            told.append(LearnedView(name="ceiling", text=f"{self.ceiling} at a time"))
        if self.pace_per_s is not None:
            told.append(LearnedView(name="pace", text=f"{self.pace_per_s:.3g} requests per second"))
        if self.quota is not None:
            told.append(LearnedView(name="quota", text=f"{self.quota} requests per {self.quota_window_s:.0f} s"))
        return tuple(told)

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            **structs.asdict(self.key),
            "ceiling": self.ceiling,
            "pace_per_s": self.pace_per_s,
            "quota": self.quota,
            "quota_window_s": self.quota_window_s,
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
        }


def read_saved(saved: object) -> Saved:
    """What `Saved.to_json` gave. Raises UnreadableError."""
    data = _mapping(saved)
    version = data.get("version")
    if version != _VERSION:
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
    )


def read_pool(saved: object) -> LearnedPool:
    """What `to_json` gave. Raises UnreadableError."""
    data = _mapping(saved)
    ceiling, quota = (_number_or_none(data, name, 1, _MOST) for name in ("ceiling", "quota"))
    return LearnedPool(
        key=PoolKey(*(_text(data, name) for name in ("host", "account", "model_group"))),
        ceiling=None if ceiling is None else int(ceiling),
        pace_per_s=_number_or_none(data, "pace_per_s", 1e-6, _MOST),
        quota=None if quota is None else int(quota),
        quota_window_s=_number(data, "quota_window_s", 0.01, _MOST_WINDOW_S),
        meters=tuple(_read_meter(meter) for meter in _list(data, "meters")),
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
