"""The provider's side of the simulated world: a site at work, and what was taken from it."""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache

import msgspec.structs

from hivemind_addon.api.spend import Price, Spend
from hivemind_addon.api.ticket import Demand, Dimension, PoolKey, Usage
from hivemind_addon.lab.sim.dialect import Reply
from hivemind_addon.lab.sim.idle import IdleMeter
from hivemind_addon.lab.sim.provider import SimProvider
from hivemind_addon.lab.sim.workload import DEFAULT_MODEL, Site
from hivemind_addon.proxy.core.budget import spend_of
from hivemind_addon.proxy.core.pool import PoolSettings
from hivemind_addon.proxy.profile.load import load_profiles, model_group
from hivemind_addon.proxy.profile.model import InputCharge, OutputCharge, Profile

WALL_S = 1_800_000_000.0
"""Seconds since the epoch at the beginning of every run."""
PRICED_AS = "claude-sonnet-4-5"
"""Whose prices every simulated token has, whoever the provider is."""


@cache
def _profile(name: str) -> Profile:
    return load_profiles(None).by_name[name]


@cache
def usual_price() -> Price:
    """What simulated tokens cost that are of no real model."""
    price = _profile("anthropic").price_of(PRICED_AS)
    assert price is not None
    return price


def bill_of(reply: Reply, *, output_tokens: int, price: Price | None) -> Spend:
    """What an answer costs of which so much was generated. `price` None: only its tokens count."""
    usage = Usage(
        input_tokens=reply.input_tokens,
        cache_write_tokens=reply.written_tokens,
        cache_read_tokens=reply.cached_tokens,
        output_tokens=output_tokens,
    )
    return spend_of(usage, price)


@dataclass(slots=True)
class Taken:
    """What one model's calls took."""

    units: Counter[Dimension] = field(default_factory=Counter)
    """What the turns that were done take at least of each limit."""
    waste: Counter[Dimension] = field(default_factory=Counter)
    """What attempts took that failed and were charged all the same, as those do that end without a head."""
    service_s: float = 0.0


class SimUpstream:
    """A site at work: its provider, how its answers are read, and what was taken from it."""

    def __init__(self, site: Site, rng: random.Random, settings: PoolSettings | None) -> None:
        """`settings`: of the scheduler's pool, in place of the profile's."""
        self.pool = site.pool
        self.dialect = site.dialect
        self.settings = site.provider
        self.provider = SimProvider(site.provider, rng, wall_offset_s=WALL_S)
        self.profile = _profile(site.profile)
        coarse_tokens = max((meter.granularity for meter in self.profile.meters), default=0)
        self.idle = IdleMeter(self.provider, coarse_tokens=round(coarse_tokens))
        self.pool_settings = settings or self.profile.pool_settings
        self.taken: defaultdict[str, Taken] = defaultdict(Taken)
        """By model."""
        self.late_tokens = 0

    def __repr__(self) -> str:
        return f"<Upstream {self.pool} {self.provider!r}>"

    def pool_of(self, model: str) -> PoolKey:
        """Where its profile puts a model's calls."""
        if model == DEFAULT_MODEL:
            return self.pool
        return msgspec.structs.replace(self.pool, model_group=model_group(self.profile, model))

    def charged(self, usage: Usage, reserved: Demand) -> Demand:
        """What the limits count of an attempt with this usage."""
        charge = self.profile.charge
        into = usage.total_input_tokens
        if charge.input is InputCharge.UNCACHED:
            into -= usage.cache_read_tokens
        out = usage.output_tokens if charge.output is OutputCharge.ACTUAL else reserved.output_tokens
        return Demand(input_tokens=into, output_tokens=out, total_tokens=into + out)
