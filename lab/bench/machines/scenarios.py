"""Troubles of the machines, and the promises for each."""

import asyncio
import os
import signal
import statistics
from dataclasses import dataclass
from functools import partial

from hivemind_addon.sim.exchange import pause
from lab.bench.machines.latency import pairs_s, quick_provider
from lab.bench.machines.stage import BUDGET, staged
from lab.fleets.proxy import NotServing
from lab.markdown import markdown_table
from tests.engine_server import EngineServer

_BUDGET = f"hivemind_total_budget={BUDGET}"
_CALM_S = 10
"""Before and after a trouble."""
_KILL_GAP_S = 3.0
_BACK_S = 60


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    goal: str
    measured: str
    kept: bool | None = None
    """None: nothing is promised."""


def table(rows):
    """Rows → Markdown."""
    verdicts = {None: "", True: "kept", False: "**not kept**"}
    cells = (f"{row.what} | {row.goal} | {row.measured} | {verdicts[row.kept]}" for row in rows)
    return markdown_table(" | goal | measured | ", cells)


def _outcome(seen, plan):
    truth = seen.truth
    lost = f"{len(seen.lost)} of {len(seen.done)} agents lost" if seen.lost else f"none of {len(seen.done)} agents lost"
    failures = sum(len(one.failures) for one in seen.done)
    again = f", {failures:,} connections made anew" if failures else ""
    trips = f", {seen.guard_trips} guard trips" if seen.guard_trips else ""
    return (
        f"{lost}; {truth.attempts:,} calls, {truth.refused} 429s ({seen.refused:.2%}), at most {truth.peak_in_flight} of "
        f"{plan.at_once} at once{again}{trips}"
    )


# Alike ----------------------------------------------------------------------------------------------------------------


def _finishing(seen):
    means = ", ".join(f"{mean_s:.1f}" for mean_s in seen.means_s())
    return f"machines' mean ends {means} s; slowest later by {seen.unfairness:.1%}; last agent over first {seen.spread:.2f}"


def _ratio(seen):
    return seen.elapsed_s / seen.bound_s


def _times(seen):
    return f"{_ratio(seen):.3f} times the bound ({seen.elapsed_s:.1f} of {seen.bound_s:.1f} s)"


async def alike(plan, folder, tell):
    """The same agents at a single proxy, at several that do not know of each other, and at members of a cluster."""
    seen = {}
    for name, machines in (("one", 1), ("apart", plan.machines), ("cluster", plan.machines)):
        place = folder / name
        place.mkdir()
        async with staged(plan, place, tell, machines=machines, cluster=name == "cluster") as stage:
            per_machine = plan.machines * plan.agents // machines
            seen[name] = await stage.run(stage.load(per_machine=per_machine, turns=plan.turns))
        tell(f"{name}: {_times(seen[name])}; {_outcome(seen[name], plan)}; {_finishing(seen[name])}")
    one, apart, cluster = seen["one"], seen["apart"], seen["cluster"]
    beside = _ratio(cluster) / _ratio(one)
    row_of = "{}; {}; {}".format
    apart_name = f"{plan.machines} proxies without an engine"
    return [
        Row("One proxy with all agents", "", row_of(_times(one), _outcome(one, plan), _finishing(one))),
        Row(apart_name, "", row_of(_times(apart), _outcome(apart, plan), _finishing(apart))),
        Row(
            "Time over bound beside one proxy with all agents",
            "≤ 1.03 times",
            f"{beside:.3f} times; {_times(cluster)}",
            beside <= 1.03,
        ),
        Row("429s", "≤ 0.5 %", _outcome(cluster, plan), cluster.refused <= 0.005 and not cluster.lost),
        Row("Ends of equal agents at different proxies", "within 5 %", _finishing(cluster), cluster.unfairness <= 0.05),
    ]


# Latency --------------------------------------------------------------------------------------------------------------


def _quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def admission(plan, folder, tell):
    """A call without competition, at a member that is not the coordinator, beside a proxy without a cluster."""
    alone, together = folder / "alone", folder / "together"
    alone.mkdir()
    together.mkdir()
    async with (
        quick_provider(folder / "quick") as quick,
        staged(plan, alone, tell, machines=1, cluster=False, provider=quick) as by_itself,
        staged(plan, together, tell, machines=2, provider=quick) as cluster,
    ):
        _, leader = await cluster.together()
        member = next(one for one in cluster.members if one is not leader)
        ports = [by_itself.members[0].port, member.port, leader.port]
        took_s = await pairs_s(ports, plan.pairs)
    base, through, at_leader = (took_s[port] for port in ports)

    def figures(values):
        return f"{1000 * _quantile(values, 0.5):.2f} / {1000 * _quantile(values, 0.99):.2f} ms"

    # Of distributions, as the goal is stated; the pairs' own differences beside them.
    added_p50 = 1000 * (_quantile(through, 0.5) - _quantile(base, 0.5))
    added_p99 = 1000 * (_quantile(through, 0.99) - _quantile(base, 0.99))
    pairwise = [1000 * (ours - theirs) for ours, theirs in zip(through, base, strict=True)]
    return [
        Row(
            "Admission through the engine, added p50 / p99",
            "≤ 1 ms / ≤ 5 ms",
            f"{added_p50:.2f} / {added_p99:.2f} ms (whole calls: one proxy {figures(base)}, a member {figures(through)}, the "
            f"coordinator {figures(at_leader)}; median of {len(pairwise):,} pairs {statistics.median(pairwise):.2f} ms)",
            added_p50 <= 1 and added_p99 <= 5,
        )
    ]


# Failures -------------------------------------------------------------------------------------------------------------


async def _through(stage, happening):
    """Agents without end, until `happening` has ended; the results of both."""
    agents = stage.load()
    running = asyncio.create_task(stage.run(agents))
    try:
        happened = await happening(agents)
    finally:
        agents.over.set()
    return await running, happened


async def _books(stage, seen):
    """The spending that the cluster reports, beside the provider's own count; a difference within the cut calls is right."""
    complete, cut = seen.tokens
    members = stage.members
    told = []
    # What is told last arrives a moment later.
    for _ in range(40):
        told = [await stage.spent(member) for member in members]
        if len(set(told)) == 1 and not told[0][1] and told[0][0] == complete + cut:
            break
        await pause(0.25)
    spent = [tokens for tokens, _ in told]
    differences = max(abs(tokens - complete - cut) for tokens in spent)
    share = differences / max(1, complete + cut)
    words = f"spent {spent[0]:,} tokens, provider {complete + cut:,}{f' ({cut:,} of them cut)' if cut else ''}"
    if len(set(spent)) > 1:
        words += f"; machines differ: {', '.join(f'{tokens:,}' for tokens in spent)}"
    return words, share


def _within(seen, plan):
    return not seen.lost and not seen.refused and seen.truth.peak_in_flight <= plan.at_once


async def coordinator_killed(plan, folder, tell):
    """Kill -9 of the coordinator, again and again, under load."""
    clock = asyncio.get_running_loop().time
    async with staged(plan, folder, tell, more=(_BUDGET,)) as stage:
        gaps_s = []

        async def kills(_agents):
            await pause(_CALM_S)
            for number in range(plan.kills):
                _, leader = await stage.together(within_s=_BACK_S)
                # A member of an hour, not one of a second: whoever is one has joined.
                await pause(1)
                before = await leader.kill()
                killed_at = clock()
                await leader.when(
                    lambda report, before=before: report.proxy.pid != before, "return after a kill", within_s=_BACK_S
                )
                took_s, _ = await stage.together(within_s=_BACK_S)
                await pause(max(0, killed_at + 5 - clock()))
                gap_s = stage.longest_gap_s(killed_at - 0.2, killed_at + 5)
                gaps_s.append(gap_s)
                truth = stage.server.truth()
                tell(
                    f"kill {number + 1} of {leader.name}: nothing came for {gap_s:.2f} s, one again {took_s:.1f} s after its "
                    f"return; {truth.refused} 429s, at most {truth.peak_in_flight} at once so far"
                )
            await pause(_CALM_S)

        seen, _ = await _through(stage, kills)
        words, share = await _books(stage, seen)
    return [
        Row(
            f"Coordinator killed (-9) under load, {len(gaps_s)} times",
            "nobody lost, no more than the limit upstream, next admission within 3 s",
            f"{_outcome(seen, plan)}; next admission after {statistics.median(gaps_s):.2f} s (median), "
            f"{max(gaps_s):.2f} s (most); {words} ({share:.2%} apart)",
            _within(seen, plan) and max(gaps_s) <= _KILL_GAP_S,
        )
    ]


async def _outage(what, strike, mend, plan, folder, tell):
    """The engine goes, by `strike`, and comes back by `mend`; without `mend` it is back at once."""
    clock = asyncio.get_running_loop().time
    lasts_s = plan.outage_s if mend else 0
    async with staged(plan, folder, tell, more=(_BUDGET,)) as stage:

        async def happening(_agents):
            await pause(_CALM_S)
            struck_at = clock()
            await asyncio.to_thread(strike, stage.engine)
            await pause(lasts_s)
            if mend:
                await asyncio.to_thread(mend, stage.engine)
            mended_at = clock()
            back_s, _ = await stage.together(within_s=_BACK_S)
            await pause(_CALM_S)
            during = sum(struck_at <= at <= mended_at for at in stage.arrivals()) / max(0.001, mended_at - struck_at)
            return during, back_s, stage.longest_gap_s(struck_at, clock())

        seen, (during, back_s, gap_s) = await _through(stage, happening)
        words, share = await _books(stage, seen)
    meanwhile = f"{during:.1f} calls/s meanwhile (limit {plan.requests / plan.window_s:g}), " if lasts_s else ""
    return [
        Row(
            what.format(lasts_s),
            "nobody lost, ≤ 2 % refused, budgets right after",
            f"{_outcome(seen, plan)}; {meanwhile}longest without a call {gap_s:.2f} s, one again after {back_s:.1f} s; {words} "
            f"({share:.2%} apart)",
            not seen.lost and seen.refused <= 0.02 and share == 0,
        )
    ]


async def _cut(of_coordinator, plan, folder, tell):
    who = "the coordinator" if of_coordinator else "one member"
    async with staged(plan, folder, tell, linked=True, more=(_BUDGET,)) as stage:

        async def happening(agents):
            await pause(_CALM_S)
            _, leader = await stage.together()
            cut = leader if of_coordinator else next(one for one in stage.members if one is not leader)
            number = stage.members.index(cut)
            stage.links[number].cut()
            tell(f"cut: {cut.name}")
            before = _turns(agents, number)
            await pause(plan.cut_s)
            others = [one for one in stage.members if one is not cut]
            during = [now - then for now, then in zip(_turns(agents, number), before, strict=True)]
            try:
                await stage.together(without=(cut,), within_s=1)
                went_on = True
            except NotServing:
                went_on = len(others) == 1
            stage.links[number].mend()
            back_s, _ = await stage.together(within_s=_BACK_S)
            await pause(_CALM_S)
            return during, back_s, went_on

        seen, ((its, others), back_s, went_on) = await _through(stage, happening)
        words, share = await _books(stage, seen)
    return [
        Row(
            f"Network of {who} to the engine cut for {plan.cut_s:g} s",
            "nobody lost, no double spending",
            f"{_outcome(seen, plan)}; meanwhile {its} turns at the cut one and {others} at the others, "
            f"{'which stayed one' if went_on else '**which were not one**'}; one again after {back_s:.1f} s; {words} "
            f"({share:.2%} apart)",
            not seen.lost and share == 0 and seen.refused <= 0.02 and went_on,
        )
    ]


def _turns(agents, number):
    """Of the agents at a machine, and of all others."""
    its = sum(one.turns for one in agents.done if one.machine == number)
    return its, sum(one.turns for one in agents.done) - its


def _signalled(number):
    return lambda engine: os.kill(engine.pid, number)


SCENARIOS = {
    "alike": alike,
    "admission": admission,
    "coordinator-killed": coordinator_killed,
    "engine-killed": partial(_outage, "Engine killed for {:g} s", EngineServer.kill, EngineServer.start),
    "engine-emptied": partial(_outage, "Engine restarted empty", partial(EngineServer.restart, empty=True), None),
    "engine-hangs": partial(_outage, "Engine hangs for {:g} s", _signalled(signal.SIGSTOP), _signalled(signal.SIGCONT)),
    "member-cut": partial(_cut, False),
    "coordinator-cut": partial(_cut, True),
}
