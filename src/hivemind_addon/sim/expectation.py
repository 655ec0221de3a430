"""A scenario's promises of the scheduler: bounds on the runs, and whether they are kept. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from hivemind_addon.sim.figures import TrialFigures
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import Policy

NO_PROXY = (Policy.DIRECT, Policy.SDK)
WORSE = 1.05
"""Time and attempts ÷ those without a proxy that are not worse yet."""
MANY_LOST = 0.05
"""Share of the agents that a run may lose more than another and still be compared."""
_LEARNING = 5
"""Refusals of a run that may be the price of finding the limits."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Bounds on all runs of a scenario on a kind of limits. Shares are between 0 and 1; a key that is missing
    asks nothing.
    """

    limits: LimitKind | None = None
    """On which kind of limits; none: on each."""
    headers: bool = True
    """false: where the provider tells nothing but a refusal's retry-after."""
    lost: float | None = None
    """Most agents that may be lost, of all."""
    refused: float | None = None
    """Most attempts that a rate limit may refuse (429), of all."""
    overloaded: float | None = None
    """Most attempts that may be answered 529 or 503, of all."""
    refused_by_limits: float | None = None
    """Most attempts that a limit or the concurrency cap may refuse, of all, in any run with more than five. A refusal
    that a neighbour's call causes and nothing reports does not count."""
    paid_in_vain: float | None = None
    """Most answers that the provider may complete and no client gets, in any run."""
    stretch_median: float | None = None
    """Time ÷ lower bound, at most in half of the runs."""
    stretch_worst: float | None = None
    """Time ÷ lower bound, at most in any run."""
    shared_stretch_worst: float | None = None
    """The same; the units that a neighbour took count as spent."""
    cost_worst: float | None = None
    """Input cost ÷ the cost with a prompt cache that forgets nothing, at most in any run."""
    cap_used_least: float | None = None
    """Calls in flight ÷ concurrency cap, at least in every run."""
    idle_worst_s: float | None = None
    """Longest time that nothing is sent though the provider would serve all who wait, at most in any run."""
    breaker_opened: float | None = None
    """How often it may take the provider for down, in all runs together."""
    zombies: float | None = None
    """Attempts that may be in flight for more than ten times the usual time of a turn, in all runs together."""
    latency_p95_s: float | None = None
    """Seconds that 95 % of the answered turns take at most, from the first ask to the whole answer, in any run."""
    overspent_worst: float | None = None
    """Spending of an agent ÷ its budget, at most in any run."""
    turn_mean_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by crowd that an answered turn takes on average, from the first ask to the whole answer, in any run."""
    wait_p95_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by crowd that 95 % of its requests wait at most, in any run."""
    wait_p95_to_fifo: Mapping[str, float] = field(default_factory=dict)
    """By crowd: the same ÷ first come, first served, at most in any run."""

    time_to_fifo: float | None = None
    """Time ÷ that of first come, first served, at most in half of the runs."""
    to_no_proxy: float | None = None
    """Time and attempts ÷ those without a proxy, at most; and no more agents are lost. See `beside_no_proxy`."""

    @property
    def needs(self) -> Sequence[Policy]:
        """The policies that something is compared with."""
        fifo = (Policy.FIFO,) if self.wait_p95_to_fifo or self.time_to_fifo is not None else ()
        return fifo if self.to_no_proxy is None else (*fifo, *NO_PROXY)

    def covers(self, kind: LimitKind | None, *, headers: bool) -> bool:
        """Whether it speaks of runs on this kind of limits."""
        return self.headers == headers and self.limits in (None, kind)

    def verdicts(
        self, runs: Sequence[TrialFigures], others: Mapping[Policy, Sequence[TrialFigures]]
    ) -> Iterator["Verdict"]:
        """The bounds on these runs, and the measured values. `others`: the same seeds under each policy of `needs`."""
        for key, what, value in _OVER_ALL:
            if (bound := getattr(self, key)) is not None:
                yield Verdict(what, bound, value(runs))
        for key, what, of in _WORST:
            if (bound := getattr(self, key)) is not None:
                yield Verdict(f"{what}, worst", bound, max(map(of, runs)))
        if self.cap_used_least is not None:
            least = min(run.cap_used for run in runs)
            yield Verdict("in flight ÷ cap, least", self.cap_used_least, least, at_least=True)
        for name, bound in self.turn_mean_s.items():
            yield Verdict(f"mean of a turn of {name}, s", bound, max(run.crowds[name].turn_mean_s for run in runs))
        for name, bound in self.wait_p95_s.items():
            yield Verdict(f"p95 wait of {name}, s", bound, max(run.crowds[name].wait_p95_s for run in runs))
        fifo = others.get(Policy.FIFO, ())
        for name, bound in self.wait_p95_to_fifo.items():
            waits_s = [
                (mine.crowds[name].wait_p95_s, theirs.crowds[name].wait_p95_s)
                for mine, theirs in zip(runs, fifo, strict=True)
            ]
            worst = max(mine_s / theirs_s if theirs_s else 0.0 for mine_s, theirs_s in waits_s)
            yield Verdict(f"p95 wait of {name} ÷ fifo's, worst", bound, worst)
        if self.time_to_fifo is not None:
            ratio = median(mine.makespan_s / theirs.makespan_s for mine, theirs in zip(runs, fifo, strict=True))
            # A run that loses more agents is done early.
            is_fair = sum(run.lost for run in fifo) <= sum(run.lost for run in runs)
            yield Verdict("time ÷ fifo's, median", self.time_to_fifo, ratio if is_fair else 0.0)
        if self.to_no_proxy is not None:
            for policy in NO_PROXY:
                yield from beside_no_proxy(runs, others[policy], policy, self.to_no_proxy)


def _share(*statuses: int) -> Callable[[Sequence[TrialFigures]], float]:
    return lambda runs: sum(run.status(*statuses) for run in runs) / (sum(run.attempts for run in runs) or 1)


def _refused_by_limits(run: TrialFigures) -> float:
    refused = run.refused - run.unforeseen
    return refused / run.attempts if refused > _LEARNING else 0.0


_OVER_ALL: Sequence[tuple[str, str, Callable[[Sequence[TrialFigures]], float]]] = (
    ("lost", "agents lost", lambda runs: sum(run.lost for run in runs) / sum(run.agents for run in runs)),
    ("refused", "429s of attempts", _share(429)),
    ("overloaded", "529s and 503s of attempts", _share(529, 503)),
    ("stretch_median", "time ÷ bound, median", lambda runs: median(run.stretch for run in runs)),
    ("zombies", "zombies", lambda runs: sum(run.zombies for run in runs)),
    ("breaker_opened", "breaker opened", lambda runs: sum(run.breaker_opened for run in runs)),
)
"""Keys of an expectation that ask for something of all runs together."""
_WORST: Sequence[tuple[str, str, Callable[[TrialFigures], float]]] = (
    ("refused_by_limits", "refused by limits", _refused_by_limits),
    ("paid_in_vain", "answers paid in vain", lambda run: run.paid_in_vain),
    ("stretch_worst", "time ÷ bound", lambda run: run.stretch),
    ("shared_stretch_worst", "time ÷ bound, neighbour counted", lambda run: run.shared_stretch),
    ("cost_worst", "input cost ÷ ideal", lambda run: run.cost_ratio),
    ("idle_worst_s", "idle for nothing, s", lambda run: run.idle_s),
    ("latency_p95_s", "p95 of a turn, s", lambda run: run.turn_p95_s),
    ("overspent_worst", "spent ÷ budget", lambda run: run.overspent),
)
"""Keys that ask for something of each run."""


def beside_no_proxy(
    runs: Sequence[TrialFigures], others: Sequence[TrialFigures], policy: Policy, bound: float = WORSE
) -> Iterator["Verdict"]:
    """Whether the runs are worse than those of the same seeds under a policy without a proxy.

    No more agents may be lost. Time and attempts are summed over the agents that finish in both runs of a seed, so that
    nobody looks fast who loses the slow ones. Where the other run loses many more agents there is no comparison: the
    rest is fast by the limits that the lost ones leave.
    """
    yield Verdict(f"agents lost beside {policy.name}", sum(run.lost for run in others), sum(run.lost for run in runs))
    pairs = [
        (run.finished[name], other.finished[name])
        for run, other in zip(runs, others, strict=True)
        if other.lost - run.lost <= MANY_LOST * run.agents
        for name in run.finished
        if name in other.finished
    ]
    for index, what in enumerate(("time", "attempts")):
        theirs = sum(other[index] for _, other in pairs)
        ratio = sum(one[index] for one, _ in pairs) / theirs if theirs else 0.0
        yield Verdict(f"{what} of who finishes ÷ {policy.name}'s", bound, ratio)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound, and the measured value."""

    what: str
    bound: float
    value: float
    at_least: bool = False
    """The value must not be below the bound; else not above it."""

    @property
    def is_met(self) -> bool:
        """Whether the value is on the right side."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def wanted(self) -> str:
        """The bound, with the sign."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"

    @property
    def text(self) -> str:
        """A line."""
        return f"{self.what}: {self.value:.4g}, expected {self.wanted}"
