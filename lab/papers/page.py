"""The page of the papers' experiments: docs/papers.md, of which these are the generated parts. Pure."""

from collections.abc import Mapping, Sequence

from lab.markdown import markdown_table
from lab.papers import agentrm, fleets, hivemind
from lab.papers.claims import Contest, PaperClaim
from lab.papers.plan import Experiments


def parts(made: Experiments) -> Mapping[str, str]:
    """Figures as Markdown, by the names of the page's marks."""
    claims = [*hivemind.claims(made), *agentrm.claims(made), *fleets.claims(made)]
    contests = [*agentrm.contests(made), *fleets.contests(made)]
    return {
        "claims": _in_short(claims, made),
        "worse": _worse(claims, contests),
        **hivemind.parts(made),
        **agentrm.parts(made),
        **fleets.parts(made),
    }


def _in_short(claims: Sequence[PaperClaim], made: Experiments) -> str:
    plan = made.plan
    words = {True: "as good or better", False: "**worse**", None: "another setting"}
    rows = (f"{claim.what} | {claim.theirs} | {claim.ours} | {words[claim.is_kept]}" for claim in claims)
    return markdown_table("Claim | Theirs | Ours |", rows) + (
        f"\n{plan.seeds} seeds, {min(plan.seeds, plan.ablation_seeds)} where a primitive is taken away; "
        f"{len(plan.loads)} random loads of {plan.load_seeds} seeds; {plan.dinners} dinners of each kind.\n"
    )


def _worse(claims: Sequence[PaperClaim], contests: Sequence[Contest]) -> str:
    lines = [f"{claim.what}: {claim.ours}; theirs {claim.theirs}" for claim in claims if claim.is_kept is False]
    lines += [told for contest in contests if (told := contest.lost_to()) is not None]
    return "".join(f"- {line}.\n" for line in lines) or "Nowhere in these tables.\n"
