"""The figures in words: the worth of each primitive. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.library import Case
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import Policy, without
from lab.evaluate.campaign import Campaign, Runs
from lab.evaluate.figures import Figures, Mean

_NOTEWORTHY = 2.0
"""Points: smaller changes are left out."""


@dataclass(frozen=True, slots=True)
class Aspect:
    """A figure that may get worse."""

    name: str
    letter: str
    """For charts."""
    worse_by: Callable[[Figures, Figures], float | None]
    """From a run to another of the same seed, in points or per cent; None: there is no comparison."""


def _stretch_worse_by(ours: Figures, theirs: Figures) -> float | None:
    return None if ours.stretch is None or theirs.stretch is None else 100 * (theirs.stretch - ours.stretch)


def _work_worse_by(ours: Figures, theirs: Figures) -> float | None:
    return 100 * (1 - theirs.turns_done / ours.turns_done) if ours.is_timed and ours.turns_done else None


def _spending_worse_by(ours: Figures, theirs: Figures) -> float | None:
    return 100 * (theirs.overspent - ours.overspent) if ours.overspent else None


LOST = Aspect("agents lost", "L", lambda ours, theirs: 100 * (theirs.lost - ours.lost))
ASPECTS: Sequence[Aspect] = (
    LOST,
    Aspect("attempts refused", "R", lambda ours, theirs: 100 * (theirs.refused - ours.refused)),
    Aspect("time ÷ bound", "T", _stretch_worse_by),
    Aspect("turns not done in the given time", "D", _work_worse_by),
    Aspect("input cost", "C", lambda ours, theirs: 100 * (theirs.cost - ours.cost)),
    Aspect(
        "p95 wait of who waits least, of the whole time",
        "W",
        lambda ours, theirs: 100 * (theirs.least_wait_p95_s - ours.least_wait_p95_s) / ours.makespan_s,
    ),
    Aspect("most spent ÷ budget", "B", _spending_worse_by),
)


@dataclass(frozen=True, slots=True)
class AblationEffect:
    """The effect of a missing primitive on a figure, mean over the seeds, in points; more is worse."""

    aspect: Aspect
    by: Mean

    @property
    def is_told(self) -> bool:
        """Whether the change is large enough, and no chance."""
        return self.by.is_sure and abs(self.by.mean) >= _NOTEWORTHY

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.aspect.name} {self.by.mean:+.0f} ({self.by.low:+.0f} to {self.by.high:+.0f})"


def changes(runs: Runs, case: Case, kind: LimitKind | None, policy: Policy) -> list[AblationEffect]:
    """Of each aspect that both have, seed by seed."""
    made = []
    for aspect in ASPECTS:
        differences = [
            worse
            for ours, theirs in runs.paired(case, kind, policy)
            if (worse := aspect.worse_by(ours, theirs)) is not None
        ]
        if differences:
            made.append(AblationEffect(aspect, Mean.of(differences)))
    return made


def harm(runs: Runs, case: Case, kind: LimitKind | None, policy: Policy) -> AblationEffect | None:
    """The worst change under a policy without some primitive, or, when nothing gets worse, the best.

    None: nothing noteworthy changes.
    """
    told = [change for change in changes(runs, case, kind, policy) if change.is_told]
    worse = [change for change in told if change.by.mean > 0]
    return max(worse or told, key=lambda change: abs(change.by.mean), default=None)


def worth(campaign: Campaign, primitive: Primitive) -> str:
    """The effects of a primitive, in a sentence for each scenario with an effect."""
    lines = []
    for case in campaign.plan.cases:
        for kind in case.kinds:
            told = [change for change in changes(campaign.runs, case, kind, without(primitive)) if change.is_told]
            if told:
                where = f"`{case.name}`" + (f" ({kind.value})" if kind else "")
                lines.append(f"{where}: {', '.join(change.text for change in told)}")
    if not lines:
        return "taking it away changes nothing noteworthy in any of these scenarios."
    return "without it " + "; ".join(lines) + "."
