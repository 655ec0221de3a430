"""What the figures say, in words and as matrices: what each primitive is worth, and what two are together. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from hivemind_addon.lab.evaluate.campaign import Campaign
from hivemind_addon.lab.evaluate.figures import Figures
from hivemind_addon.lab.evaluate.spread import Mean
from hivemind_addon.lab.sim.ablation import Primitive
from hivemind_addon.lab.sim.library import Case, Telling
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.policy import Policy, only, pairs, without

_NOTEWORTHY = 2.0
"""Points: a smaller change is not told."""
_TOGETHER = 2.0
"""Points by which two together have to differ from the sum of both, to be told."""


@dataclass(frozen=True, slots=True)
class Aspect:
    """One of the things that may get worse."""

    name: str
    letter: str
    """For charts."""
    worse_by: Callable[[Figures, Figures], float | None]
    """From one run to another of the same seed, in points or per cent; None: it cannot be compared."""


def _stretch_worse_by(ours: Figures, theirs: Figures) -> float | None:
    return None if ours.stretch is None or theirs.stretch is None else 100 * (theirs.stretch - ours.stretch)


def _work_worse_by(ours: Figures, theirs: Figures) -> float | None:
    return 100 * (1 - theirs.turns_done / ours.turns_done) if ours.is_timed and ours.turns_done else None


ASPECTS: Sequence[Aspect] = (
    Aspect("agents lost", "L", lambda ours, theirs: 100 * (theirs.lost - ours.lost)),
    Aspect("attempts refused", "R", lambda ours, theirs: 100 * (theirs.refused - ours.refused)),
    Aspect("time ÷ bound", "T", _stretch_worse_by),
    Aspect("turns not done in the given time", "D", _work_worse_by),
    Aspect("input cost", "C", lambda ours, theirs: 100 * (theirs.cost - ours.cost)),
    Aspect(
        "p95 wait of who waits least, of the whole time",
        "W",
        lambda ours, theirs: 100 * (theirs.least_wait_p95_s - ours.least_wait_p95_s) / ours.makespan_s,
    ),
)


@dataclass(frozen=True, slots=True)
class AblationEffect:
    """What taking something away does to one figure, mean over the seeds, in points; more is worse."""

    aspect: Aspect
    by: Mean

    @property
    def is_told(self) -> bool:
        """Whether it is large enough, and no chance."""
        return self.by.is_sure and abs(self.by.mean) >= _NOTEWORTHY

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.aspect.name} {self.by.mean:+.0f} ({self.by.low:+.0f} to {self.by.high:+.0f})"


def changes(campaign: Campaign, case: Case, kind: LimitKind | None, policy: Policy) -> list[AblationEffect]:
    """Of each aspect that both have, seed by seed."""
    made = []
    for aspect in ASPECTS:
        differences = [
            worse
            for ours, theirs in campaign.paired(case, kind, policy)
            if (worse := aspect.worse_by(ours, theirs)) is not None
        ]
        if differences:
            made.append(AblationEffect(aspect, Mean.of(differences)))
    return made


def harm(campaign: Campaign, case: Case, kind: LimitKind | None, primitive: Primitive) -> AblationEffect | None:
    """The change that taking it away makes worst, or, when none gets worse, best; None: nothing noteworthy changes."""
    told = [change for change in changes(campaign, case, kind, without(primitive)) if change.is_told]
    worse = [change for change in told if change.by.mean > 0]
    return max(worse or told, key=lambda change: abs(change.by.mean), default=None)


def worth(campaign: Campaign, primitive: Primitive) -> str:
    """What one primitive does, in a sentence for each scenario where it does something."""
    lines = []
    for case in campaign.plan.ablated:
        for kind in case.kinds:
            told = [change for change in changes(campaign, case, kind, without(primitive)) if change.is_told]
            if told:
                where = f"`{case.name}`" + (f" ({kind.value})" if kind else "")
                lines.append(f"{where}: {', '.join(change.text for change in told)}")
    if not lines:
        return "taking it away changes nothing noteworthy in any of these scenarios."
    return "without it " + "; ".join(lines) + "."


def telling(case: Case, run: Figures) -> float:
    """A case's telling figure, in points."""
    match case.ablate:
        case Telling.REFUSED:
            return 100 * run.refused
        case Telling.COST:
            return 100 * (run.cost - 1)
        case _:
            return 100 * run.lost


def _level(campaign: Campaign, case: Case, policy: Policy) -> float:
    return fmean(telling(case, run) for run in campaign.of_all_kinds(case, policy))


@dataclass(frozen=True, slots=True)
class Interaction:
    """Two primitives taken away, against each of them alone; points of the telling figure above the whole's."""

    one: Primitive
    other: Primitive
    one_alone: float
    other_alone: float
    together: float

    @property
    def beyond_sum(self) -> float:
        """What both do together beyond the sum of what each does: above zero they stand in for each other."""
        return self.together - self.one_alone - self.other_alone


def interactions(campaign: Campaign, case: Case) -> list[Interaction]:
    """Every two, those first that differ most from the sum of both."""
    whole = _level(campaign, case, Policy.HIVEMIND)
    alone = {primitive: _level(campaign, case, without(primitive)) - whole for primitive in Primitive}
    made = [
        Interaction(one, other, alone[one], alone[other], _level(campaign, case, without(one, other)) - whole)
        for one, other in pairs()
    ]
    return sorted(made, key=lambda pair: -abs(pair.beyond_sum))


def pair_matrix(campaign: Campaign, case: Case) -> list[list[float]]:
    """Levels of the telling figure: above the diagonal two were taken away, on it one, below it two were left alone."""
    order = list(Primitive)

    def level(row: Primitive, column: Primitive) -> float:
        if row is column:
            return _level(campaign, case, without(row))
        if order.index(row) < order.index(column):
            return _level(campaign, case, without(row, column))
        return _level(campaign, case, only(column, row))

    return [[level(row, column) for column in order] for row in order]


def synergies(campaign: Campaign, case: Case) -> Iterator[str]:
    """What is told of a case's pairs."""
    told = [pair for pair in interactions(campaign, case) if abs(pair.beyond_sum) >= _TOGETHER]
    for pair in told[:6]:
        kind = "stand in for each other" if pair.beyond_sum > 0 else "overlap"
        yield (
            f"{pair.one.value} and {pair.other.value} {kind}: {pair.one_alone:+.1f} and {pair.other_alone:+.1f} points "
            f"without either, {pair.together:+.1f} without both"
        )
    if not told:
        yield "every two primitives add up: without both it is, within 2 points, the sum of what each one costs"


def alone(campaign: Campaign, case: Case) -> list[tuple[str, float]]:
    """The telling figure with nothing, each primitive alone, and everything; points."""
    rows = [("nothing", _level(campaign, case, only()))]
    rows += [(primitive.value, _level(campaign, case, only(primitive))) for primitive in Primitive]
    return [*rows, ("everything", _level(campaign, case, Policy.HIVEMIND))]
