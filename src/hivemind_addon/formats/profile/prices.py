"""Prices and context windows of models, by the price data in the wheel of `genai-prices`. Nothing is downloaded.

Loading takes 0.3 s of processor time and 15 MB: a model without a price in the profile needs the data, nothing else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from hivemind_addon.kernel.values.spend import Price, SpecialPrice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

SLOT_S = 1800
"""Prices that depend on the time of day change at half hours."""
_TIERS = ("priority", "flex", "fast", "batch")
_RESELLER = "openrouter"
"""The list has the models of makers that have no other list."""
_MOST = 1024
_VENDOR = re.compile(r"^(?:[a-z]+\.)+(?=[a-z])")
"""`us.anthropic.` before `claude-opus-5`."""
_OF_BEDROCK = re.compile(r"-v\d+(?::\d+)?$")
_DATED = re.compile(r"[-@](?:20\d\d-\d\d-\d\d|\d{4,})(?!\d)|:.*$")
"""The edition of a model: a date, a variant such as `:thinking`."""
_PARTS = re.compile(r"\d+(?:\.\d+)*(?![\d.]*[a-z])|\d*[a-z]+")
_NOISE = {"latest", "preview", "exp", "experimental", "instruct", "fp", "v"}


def micro(usd: float | Decimal) -> int:
    """Dollars in whole micro-dollars."""
    return round(usd * 1_000_000)


def load() -> None:
    """Load the data, which may also be done in a thread."""
    _catalog()


def data_of(today: date) -> tuple[str, date]:
    """The version of the data, and the day of the newest price that is in force."""
    from importlib.metadata import version  # noqa: PLC0415 - `hivemind doctor` alone asks

    return version("genai-prices"), max((start for start in _catalog().starts() if start <= today), default=today)


@lru_cache(maxsize=_MOST)
def window_of(hosts: tuple[str, ...], model: str) -> int | None:
    """The context window of a model at these hosts; None: unknown."""
    info = _catalog().find(hosts, model)
    return info.context_window if info is not None else None


@lru_cache(maxsize=_MOST)
def price_of(hosts: tuple[str, ...], model: str, slot: int) -> Price | None:
    """The price of a model at these hosts, in a span of SLOT_S since the epoch; else that of the nearest of the family.

    `hosts`: the host that is called, then others of the same provider.
    """
    catalog, at = _catalog(), datetime.fromtimestamp(slot * SLOT_S, UTC)
    info, guess = catalog.find(hosts, model), ""
    if info is None or _amount(info.get_prices(at), "input_mtok", 0) is None:
        info = catalog.nearest(hosts, model, at)
        if info is None:
            return None
        guess = info.id
    usual = info.get_prices(at)
    special = [SpecialPrice(**_rates(usual, start + 1), above=start) for start in _starts(usual)]
    for tier in _TIERS if info.price_variants else ():
        told = info.get_prices(at, {"service_tier": tier, "processing": tier, "speed": tier})
        if told != usual:
            special += (
                SpecialPrice(**_rates(told, start + 1), tier=tier, above=start) for start in (*_starts(told), -1)
            )
    return Price(**_rates(usual, 0), guess=guess, special=tuple(special))


def _starts(prices: ModelPrice) -> list[int]:
    """The lengths of input from which on other prices hold, the longest first."""
    tiered = [value for value in vars(prices).values() if getattr(value, "tiers", None)]
    return sorted({tier.start for value in tiered for tier in value.tiers}, reverse=True)


def _rates(prices: ModelPrice, tokens: int) -> dict[str, Any]:
    """The prices of a request with so much input."""
    each = _amount(prices, "input_mtok", tokens) or 0
    write = _amount(prices, "cache_write_mtok", tokens)
    read = _amount(prices, "cache_read_mtok", tokens)
    return {
        "input": each,
        "cache_write": each if write is None else write,
        "cache_read": each if read is None else read,
        "output": _amount(prices, "output_mtok", tokens) or 0,
        "cache_write_1h": _amount(prices, "cache_write_1h_mtok", tokens),
    }


def _amount(prices: ModelPrice, name: str, tokens: int) -> int | None:
    value: Decimal | TieredPrices | None = getattr(prices, name)
    if value is None:
        return None
    if isinstance(value, Decimal):
        return micro(value)
    return micro(next((tier.price for tier in reversed(value.tiers) if tokens > tier.start), value.base))


@cache
def _catalog() -> _Catalog:
    from genai_prices.data import providers  # noqa: PLC0415 - 0.3 s

    return _Catalog(providers)


class _Catalog:
    def __init__(self, providers: Sequence[Provider]) -> None:
        self._providers = providers
        self._makers = [one for one in providers if one.model_match is not None]
        self._resellers = [one for one in providers if one.id == _RESELLER]
        self._families: dict[str, list[tuple[Provider, ModelInfo]]] = defaultdict(list)
        """First word of a model's name → the models of makers and resellers."""
        for provider in providers:
            for info in provider.models:
                words, _ = _line(info.id)
                if words:
                    self._families[words[0]].append((provider, info))

    def starts(self) -> Iterator[date]:
        """The days from which prices hold."""
        for provider in self._providers:
            for info in provider.models:
                listed: list[Any] = [
                    *(info.prices if isinstance(info.prices, list) else ()),
                    *(info.price_variants or ()),
                ]
                for one in listed:
                    if start := getattr(one.constraint, "start_date", None):
                        yield start

    def _at(self, hosts: Sequence[str]) -> Provider | None:
        for host in hosts:
            url = f"https://{host.replace('*', 'x')}/"
            for provider in self._providers:
                if re.match(provider.api_pattern, url):
                    return provider
        return None

    def find(self, hosts: Sequence[str], model: str) -> ModelInfo | None:
        """A model of the provider, else of the model's maker."""
        own, names = self._at(hosts), _names(model)
        if own is not None:
            for name in names:
                if (info := own.find_model(name, all_providers=list(self._providers))) is not None:
                    return info
        for name in names:
            for maker in self._makers:
                if (
                    maker.model_match
                    and maker.model_match.is_match(name)
                    and (info := maker.find_model(name)) is not None
                ):
                    return info
        return next((info for one in self._resellers if (info := one.find_model(names[0])) is not None), None)

    def nearest(self, hosts: Sequence[str], model: str, at: datetime) -> ModelInfo | None:
        """The model of the family that is nearest by name: the same line, the nearest version, the dearest of these."""
        own = self._at(hosts)
        lists = (*([own] if own else ()), *self._makers, *self._resellers)
        wanted, version = _line(model)
        best: tuple[tuple[float, ...], ModelInfo] | None = None
        for family in dict.fromkeys(wanted):
            for provider, info in self._families.get(family, ()):
                each = _amount(info.get_prices(at), "input_mtok", 0)
                if not each or provider not in lists:
                    continue
                words, its = _line(info.id)
                shared = len({*wanted} & {*words})
                rank = (-shared, len({*words} - {*wanted}), abs(its - version), float(provider is not own), -each)
                if best is None or rank < best[0]:
                    best = rank, info
        return best[1] if best else None


def _names(model: str) -> list[str]:
    """A model by its other names: without the route before it, without its vendor and the `-v1:0` of Bedrock."""
    name = model.lower()
    tail = name.rsplit("/", 1)[-1]
    return list(dict.fromkeys([name, tail, _VENDOR.sub("", _OF_BEDROCK.sub("", tail))]))


@lru_cache(maxsize=8 * _MOST)
def _line(model: str) -> tuple[tuple[str, ...], float]:
    """The words of a model's name that are no edition, and the version."""
    parts = _PARTS.findall(_DATED.sub("", _names(model)[-1]))
    numbers = [int(number) for one in parts if one[-1].isdigit() for number in one.split(".")]
    words = tuple(one for one in parts if not one[-1].isdigit() and one not in _NOISE)
    return words, sum(number / 100**place for place, number in enumerate(numbers[:2]))
