"""A comparison as Markdown. Pure: figures in, text out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hivemind_addon import __version__
from hivemind_addon.sim.actor import PRICED_AS
from hivemind_addon.sim.library import Case
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.policy import Policy
from lab.evaluate.campaign import Campaign, CampaignPlan
from lab.evaluate.figures import Figures, Mean, Spread, few_lost
from lab.evaluate.findings import worth
from lab.evaluate.sockets import SocketRun
from lab.markdown import markdown_list, markdown_table


@dataclass(frozen=True, slots=True)
class Setting:
    """How a comparison was made: enough to make it again."""

    command: str
    versions: str
    machine: str
    sockets: Sequence[SocketRun] = ()
    peer_problem: str = ""
    """Why the peer was not run; empty: the peer was run, or not asked for."""


def _parts(campaign: Campaign, setting: Setting) -> Iterator[tuple[str, str, str]]:
    """Title, text and chart of each part, in reading order. The chart's name is empty where there is no chart."""
    yield "What came of it", _summary(campaign), ""
    yield "Who loses agents", _LOST, "lost"
    yield "Refusals and waste", _WASTE, "refused"
    yield "Time", _TIME, "stretch"
    yield "Waits and fairness", _WAITS, ""
    yield "All figures", _figures(campaign), ""
    if campaign.plan.primitives:
        yield "What each primitive is worth", _worths(campaign), "ablation"
    if setting.sockets or setting.peer_problem:
        yield "On real sockets", _sockets(setting), ""
    yield "The setting", _setting(campaign, setting), ""


_HEAD = """\
The scheduler, and what people do without it, before the same simulated provider. {runs:,} runs in virtual time; the
same command gives the same numbers: `{command}`.
"""

_LOST = """\
An agent is lost when it gets an answer that it takes for final, or none in its patience. In the seven scenarios of the
HiveMind paper an agent dies of its first error; in the others it has the re-sends that its scenario says.
"""
_WASTE = """\
*Refused* are attempts that cost a round trip and gave nothing but a reason to wait. *In vain* are tokens that somebody
pays for and has nothing from: attempts that broke off, and all that agents had used that were lost in the end.
"""
_TIME = """\
The end of the last agent ÷ a lower bound that no schedule can beat (`sim/bound.py`). Who lost more than 1 % of its
agents is left out: who dies early is done early. A scenario whose time is given has no such figure.
"""
_WAITS = """\
Seconds that requests spend in the scheduler's queue; calls that nobody schedules wait for nobody, and die. Where
limits are spent somebody has to wait: fairness is who. It is Jain's index of the turns that the agents of a crowd have
had answered when half of the time is over: 1 is equal, 1/n is one agent having had all.
"""


def _summary(campaign: Campaign) -> str:
    rows = []
    for policy in campaign.plan.policies:
        runs = [run for case in campaign.plan.cases for run in campaign.runs.of_all_kinds(case, policy)]
        if not runs:
            continue
        known = [run.stretch for run in runs if run.stretch is not None and run.stretch > 0]
        wasted, billed = sum(run.wasted_tokens for run in runs), sum(run.billed_tokens for run in runs)
        rows.append(
            f"{policy.name} | {_share([run.lost for run in runs])} | {_share([run.refused for run in runs])} "
            f"| {100 * wasted / (billed or 1):.1f} % "
            f"| {f'{max(known):.2f}' if known else '-'} | {Mean.of([run.cost for run in runs]).mean:.2f}"
        )
    titles = "Policy | Agents lost | Attempts refused | Tokens in vain | Worst time ÷ bound | Input cost ÷ ideal"
    return (
        "Over all scenarios, kinds of limits and seeds; shares are means with a 95 % bootstrap interval.\n\n"
        f"{markdown_table(titles, rows)}\n"
        + markdown_list({policy.name: f"{policy.about}." for policy in campaign.plan.policies})
    )


def _share(values: Sequence[float]) -> str:
    mean = Mean.of([100 * value for value in values])
    return f"{mean.mean:.2f} % ({mean.low:.2f} to {mean.high:.2f})"


_FIGURES = """\
Medians over the seeds, least to most in brackets where they differ (waits without). With several crowds p50, p95 and
p99 are of the one that waits most; the last wait is the p95 of the one that waits least. Money is at the prices of
{model}.
"""
_FIGURES_TITLES = (
    "Scenario | Limits | Policy | Lost % | 429 % | Refused % | ÷ bound | Wait s: mean, p50, p95, p99; least p95 "
    "| Fairness | In vain, tokens | In vain, $ | Cost"
)


def _figures(campaign: Campaign) -> str:
    rows = [
        _row(case, kind, policy, runs)
        for case in campaign.plan.cases
        for kind in case.kinds
        for policy in campaign.plan.policies
        if (runs := campaign.runs.of(case, kind, policy))
    ]
    return f"{_FIGURES.format(model=PRICED_AS)}\n{markdown_table(_FIGURES_TITLES, rows)}"


_WAITED: Sequence[Callable[[Figures], float]] = (
    lambda run: run.wait_mean_s,
    lambda run: run.wait_p50_s,
    lambda run: run.wait_p95_s,
    lambda run: run.wait_p99_s,
)


def _row(case: Case, kind: LimitKind | None, policy: Policy, runs: Sequence[Figures]) -> str:
    def spread(value: Callable[[Figures], float], form: str = "{:.2f}") -> str:
        some = Spread.of([value(run) for run in runs])
        median, least, most = (form.format(number) for number in (some.median, some.least, some.most))
        return median if least == most else f"{median} ({least} to {most})"

    known = [run.stretch for run in runs if run.stretch is not None]
    stretch = ""
    if known and few_lost(runs) and case.scenario.duration_s == float("inf"):
        some = Spread.of(known)
        stretch = f"{some.median:.2f} ({some.least:.2f} to {some.most:.2f})"
    waits = ", ".join(f"{Spread.of([value(run) for run in runs]).median:.1f}" for value in _WAITED)
    waits += f"; {Spread.of([run.least_wait_p95_s for run in runs]).median:.1f}"
    return (
        f"{case.name} | {kind.value if kind else '-'} | {policy.name} "
        f"| {spread(lambda run: 100 * run.lost, '{:.0f}')} | {spread(lambda run: 100 * run.throttled, '{:.1f}')} "
        f"| {spread(lambda run: 100 * run.refused, '{:.1f}')} | {stretch} | {waits} "
        f"| {spread(lambda run: run.fairness)} | {spread(lambda run: run.wasted_tokens, '{:.0f}')} "
        f"| {spread(lambda run: run.wasted_usd)} | {spread(lambda run: run.cost)}"
    )


_WORTH = """\
Each scenario again without each primitive, seed by seed against the whole. A change is told when it is 2 points or
more and its 95 % bootstrap interval leaves zero out; above zero is worse. Shares change by points, ratios by
hundredths. Time ÷ bound is compared only where nobody was lost; where the time is given, the turns that were done in
it are.

Two at a time mostly add up: without both it is about the sum of what each one costs. Of all pairs in four scenarios (20
seeds, November 2026) two did not by far. Meters and hidden limits stand in for each other: in `stress` 1 to 3 of 100
agents more are lost without either, 46 without both. And what nobody tries again cannot be refused again: in
`changing-cap` 63 % of the attempts are refused without hidden limits, 5 % without these and retries. A policy like
`hivemind-without-meters+hidden-limits` shows such pairs in `hivemind lab scenario run`.
"""


def _worths(campaign: Campaign) -> str:
    lines = [f"- **{primitive.value}**: {worth(campaign, primitive)}" for primitive in campaign.plan.primitives]
    return "\n".join([_WORTH, *lines]) + "\n"


_SOCKETS = """\
The same agents and provider on real sockets, through a real mitmdump with the addon, through the peer's own proxy, and
straight, all at the same time on one machine. Times are divided by the factor; backoffs and guards shrink in nobody's
program, so that more than 1 is harder than life. The peer (`hivemind-scheduler` 0.2.0 from PyPI, as it is) is told the
provider's true concurrency cap; the addon finds it out. It does not try again what ended in a reset connection: that
reaches its agents as a 502. A wait is all that a turn took beyond its service.
"""


def _sockets(setting: Setting) -> str:
    problem = f"\nThe peer was not run: {setting.peer_problem}.\n" if setting.peer_problem else ""
    rows = [
        f"{run.scenario} | {run.kind.value} | {run.way} | {run.factor:g} "
        f"| {round(run.figures.lost * run.agents)} of {run.agents} | {run.figures.attempts} "
        f"| {100 * run.figures.throttled:.1f} | {100 * run.figures.refused:.1f} "
        f"| {'' if run.figures.stretch is None else f'{run.figures.stretch:.2f}'} | {run.figures.wait_p95_s:.1f} "
        f"| {run.deaths}"
        for run in setting.sockets
    ]
    titles = "Scenario | Limits | Way | Factor | Lost | Attempts | 429 % | Refused % | ÷ bound | Wait p95 s | Died of"
    after = "\nWhat a request costs on its way through the proxy is measured in [bench.md](bench.md).\n"
    return f"{_SOCKETS}{problem}\n{markdown_table(titles, rows)}{after}"


_SETTING = """
Where nothing else is said: latencies are lognormal with a sigma of 0.2, think times and sizes uniform between the given
ends. The files are `scenarios/*.yaml`; `hivemind lab scenario show NAME` prints one.

"""
_SETTING_TITLES = (
    "Scenario | Agents: turns, think s, latency s, output tokens | Patience s, re-sends | Limits | At once | Errors "
    "| About"
)


def _setting(campaign: Campaign, setting: Setting) -> str:
    plan = campaign.plan
    return (
        f"- Command: `{setting.command}`\n"
        f"- Seeds: 0 to {plan.seeds - 1}; without primitives {_seeds_without(plan)}\n"
        f"- Versions: hivemind-addon {__version__}, {setting.versions}\n"
        f"- Machine: {setting.machine} (virtual time does not depend on it)\n\n"
        f"{_SETTING}{markdown_table(_SETTING_TITLES, map(_scenario, plan.cases))}"
    )


def _seeds_without(plan: CampaignPlan) -> str:
    runs = sorted({plan.seeds_without(case) for case in plan.cases})
    if len(runs) == 1:
        return f"0 to {runs[0] - 1}"
    return f"{runs[0]} to {runs[-1]} of them, the fewer the more agents a scenario has"


def _scenario(case: Case) -> str:
    scenario = case.scenario
    agents, patience = [], []
    for crowd in scenario.crowds:
        turns = "without end" if crowd.turns is None else crowd.turns
        spikes = f", {crowd.spike_rate:.0%} x{crowd.spike_factor:g}" if crowd.spike_rate else ""
        agents.append(
            f"{crowd.agents} {crowd.name}: {turns}, {_range(crowd.think_s)}, {crowd.latency_s:g}{spikes}, "
            f"{_range(crowd.output_tokens)}"
        )
        patience.append(f"{crowd.timeout_s:g}, {crowd.retries}")
    providers = [scenario.provider, *(site.provider for site in scenario.sites)]
    limits = "; ".join(", ".join(map(_limit, provider.limits)) or "none" for provider in providers)
    caps = "; ".join(str(provider.concurrency or "any") for provider in providers)
    caps += "".join(f", from {at:g} s {cap}" for at, cap in scenario.caps)
    faults = [f"{name} {share:.1%}" for provider in providers for name, share in provider.faults.items()]
    faults += [
        f"{outage.status} from {outage.from_s:g} to {outage.to_s:g} s"
        for provider in providers
        for outage in provider.outages
    ]
    faults += [
        f"{sum(storm.faults.values()):.0%} from {storm.from_s:g} to {storm.to_s:g} s"
        for provider in providers
        for storm in provider.storms
    ]
    faults += [
        f"{' and '.join(f'{name} {share:.0%}' for name, share in point.faults.items())} at {point.at_s:g} s"
        for provider in providers
        if provider.fault_course
        for point in provider.fault_course.points
    ]
    return (
        f"{case.name} | {'; '.join(agents)} | {'; '.join(patience)} | {limits} | {caps} "
        f"| {', '.join(faults) or 'none'} | {case.about}"
    )


def _range(values: tuple[float, ...]) -> str:
    return f"{min(values):g}" if len({*values}) == 1 else f"{min(values):g} to {max(values):g}"


def _limit(limit: Limit) -> str:
    hidden = "" if limit.told else " (hidden)"
    return f"{limit.amount:,} {limit.dimension.value.replace('_', ' ')} in {limit.window_s:g} s{hidden}"


def markdown(campaign: Campaign, setting: Setting, charts: Mapping[str, str]) -> str:
    """A page. `charts`: the Markdown of each picture, by the chart's name."""
    head = _HEAD.format(runs=len(campaign.runs), command=setting.command)
    lines = ["# Evaluation", "", f"<!-- Generated by `{setting.command}`. -->", "", head]
    for title, text, chart in _parts(campaign, setting):
        lines += [f"## {title}", "", text]
        lines += [f"{charts[chart]}\n"] if chart in charts else []
    return "\n".join(lines)
