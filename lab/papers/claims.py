"""The pieces of the page: claims, and numbers in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hivemind_addon.sim.policy import Policy
from lab.evaluate.figures import Figures

OURS = Policy.HIVEMIND.name
_CLEARLY = 0.95
"""Of our figure: a policy that is nearer is no better."""


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """A line of the page's first table."""

    what: str
    theirs: str
    ours: str
    is_kept: bool | None
    """Whether ours is as good or better; None: the settings differ too much to say so."""


@dataclass(frozen=True, slots=True)
class Contest:
    """A figure of a scenario under several policies."""

    where: str
    what: str
    runs: Mapping[str, Sequence[Figures]]
    """By the policy's name, `OURS` among them."""
    value: Callable[[Figures], float]
    form: str
    more_is_better: bool = False

    def lost_to(self) -> str | None:
        """Which policies that lose no more agents are clearly better than ours, in words; None: none is."""
        means = {name: fmean(map(self.value, runs)) for name, runs in self.runs.items()}
        lost = {name: fmean(run.lost for run in runs) for name, runs in self.runs.items()}
        mine = means[OURS]
        edge = mine / _CLEARLY if self.more_is_better else mine * _CLEARLY

        def is_better(name: str) -> bool:
            ahead = means[name] > edge if self.more_is_better else means[name] < edge
            return name != OURS and lost[name] <= lost[OURS] and ahead

        better = [f"`{name}` {self.form.format(means[name])}" for name in means if is_better(name)]
        return f"{self.where}, {self.what}: {self.form.format(mine)}; {', '.join(better)}" if better else None


def spread(values: Sequence[float], form: str = "{:.0f}") -> str:
    """The mean, and least to most where they differ."""
    mean, least, most = (form.format(value) for value in (fmean(values), min(values), max(values)))
    return mean if least == most else f"{mean} ({least} to {most})"


def alike(runs: Mapping[str, Sequence[Figures]]) -> str:
    """Which policies have the very same runs, and why, in words; empty: none."""
    groups: dict[tuple[Figures, ...], list[str]] = {}
    for name, some in runs.items():
        groups.setdefault(tuple(some), []).append(f"`{name}`")
    return " ".join(
        f"The runs of {', '.join(names)} are the same: an agent asks for one turn at a time, all are of one class, and "
        "so each serves who came first."
        for names in groups.values()
        if len(names) > 1
    )


def percent(share: float) -> str:
    """Of a share between 0 and 1."""
    return f"{100 * share:.0f} %" if share in (0, 1) or share >= 0.0995 else f"{100 * share:.1f} %"


def change(first: float, second: float) -> str:
    """By how much the second is below the first, or above it."""
    if not first:
        return "more" if second else "as much"
    by = round(100 * second / first - 100)
    return f"{abs(by)} % {'more' if by > 0 else 'less'}" if by else "as much"
