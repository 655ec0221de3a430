"""What came of one run, in virtual time or on a socket, as frozen values."""

import math
from collections import Counter
from dataclasses import dataclass, field

from hivemind_addon.api.spend import Spend
from hivemind_addon.lab.sim.bound import Bound


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """What became of one crowd."""

    agents: int
    lost: int
    turns_done: int
    waits_s: tuple[float, ...]
    """Of every ticket that ended, all its waits together."""
    ended_s: tuple[float, ...]
    """When the agents finished, who did."""
    halfway_turns: tuple[int, ...] = ()
    """Of each agent, that were answered when half of the run was over; empty: not measured."""

    def wait_s(self, share: float) -> float:
        """The wait that this share of the tickets did not exceed."""
        ordered = sorted(self.waits_s)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class CallResult:
    """What became of one scripted call."""

    id: str
    asked_at: float | None
    """When its client sent it first; None: it never came to that."""
    ended_at: float | None
    """None: the run was over before."""
    death: str | None
    """Why it failed; None: it was answered, or still runs."""
    billed: Spend
    """For all its attempts, at its model's own price."""
    in_vain: Spend
    """Of it, for attempts that gave no answer."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run."""

    makespan_s: float
    """When the last agent ended."""
    bound: Bound
    attempts: int
    statuses: Counter[int]
    """Attempts by status; 0: none came."""
    crowds: dict[str, CrowdResult]
    """By name, without poisoned ones."""
    deaths: Counter[str]
    cost: float
    """Input paid for, in uncached tokens."""
    ideal_cost: float
    """Of the turns that were done, with a cache that forgets nothing."""
    cap_used: float
    """Mean of calls in flight ÷ concurrency cap, over the time; 0 where there is no cap."""
    breaker_opened: int
    """Times that the scheduler took the provider for down."""
    sheds: int
    neighbour_calls: int
    """Of the neighbour, that were let through."""
    shared_bound_s: float
    """The lower bound when what the neighbour took counts as spent."""
    idle_s: float = 0.0
    """The longest time that nothing was sent though the provider would have served all who waited."""
    refused: int = 0
    """Attempts that a limit or the cap refused; faults and outages are no refusals, whatever their status."""
    unforeseen: int = 0
    """Of them: by the cap, though the own calls left a slot, the first since a neighbour's call had taken it."""
    script: tuple[CallResult, ...] = ()
    """Of the scripted calls, in the scenario's order."""
    billed: Spend = field(default_factory=Spend)
    """By the provider, at the prices of `upstream.PRICED_AS`."""
    wasted: Spend = field(default_factory=Spend)
    """Of it: attempts that gave no answer, and all of agents that were lost."""

    @property
    def agents(self) -> int:
        """All."""
        return sum(crowd.agents for crowd in self.crowds.values())

    @property
    def lost(self) -> int:
        """Agents that died, or that a run without end left behind; poisoned ones are not counted."""
        return sum(crowd.lost for crowd in self.crowds.values())

    @property
    def cost_ratio(self) -> float:
        """Input cost ÷ ideal; 1 where nothing was answered."""
        return self.cost / self.ideal_cost if self.ideal_cost else 1.0

    @property
    def fairness(self) -> float:
        """Jain's index of the turns that agents had done when half of the time was over: 1 is equal, 1/n one had all.

        Of the crowd that is worst off; 0 where it was not measured.
        """
        return min((_jain(crowd.halfway_turns) for crowd in self.crowds.values()), default=0.0)

    @property
    def stretch(self) -> float:
        """Makespan ÷ lower bound."""
        return self.makespan_s / self.bound.bound_s if self.bound.bound_s else 0.0

    @property
    def shared_stretch(self) -> float:
        """Makespan ÷ the lower bound when what a neighbour took counts as spent: nobody else can use it."""
        return self.makespan_s / self.shared_bound_s if self.shared_bound_s else 0.0


def _jain(shares: tuple[int, ...]) -> float:
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
