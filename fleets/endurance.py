"""How long agents wait: each of them held for minutes, silently and with signs of life, all side by side.

A held agent's first request is answered when its hold is over, counted from its first attempt; so is every later
attempt until then. Writes docs/endurance.md. Takes as long as the longest hold.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fleets.agent import Agent, Program, Straight, launch
from fleets.process import Exit, run
from fleets.programs import CLAUDE_VERSION, CODEX_VERSION, NotInstalled, Programs, install
from fleets.stage import Stage, running_stage
from fleets.tunnel import running_tunnel
from hivemind_addon.lab.sim.exchange import pause
from hivemind_addon.lab.sim.faults import Hold, KeepAlive
from hivemind_addon.lab.sim.provider import LimitScope, ProviderSettings
from hivemind_addon.lab.sim.request import credential
from hivemind_addon.lab.sim.task import SimTask

PAGE = Path(__file__).resolve().parents[1] / "docs" / "endurance.md"
_HOLDS_MIN = (1.0, 5.0, 9.5, 12.0, 30.0)
_GRACE_S = 300
"""After its hold an agent has so long to finish."""
_START_EVERY_S = 0.7
"""Many processes that start at once would wait for each other, not for us."""
_MAX_WORDS = 300
_MODEL_PATHS = ("/v1/messages", "/v1/responses")

_MANNERS = {
    Program.CLAUDE: (KeepAlive.NOTHING, KeepAlive.COMMENTS, KeepAlive.PINGS),
    Program.CODEX: (KeepAlive.NOTHING, KeepAlive.COMMENTS),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One agent and its hold."""

    program: Program
    patient: bool
    manner: KeepAlive
    hold_s: float

    @property
    def name(self) -> str:
        """Fit for a task and a folder."""
        patience = "patient" if self.patient else "default"
        return f"{self.program.name.lower()}-{patience}-{self.manner.value}-{self.hold_s:.0f}"


@dataclass(frozen=True, slots=True)
class Endured:
    """What came of it."""

    case: Case
    finished: bool
    exit: Exit
    attempts_at_s: Sequence[float]
    """When the held request was sent, since the first time."""

    @property
    def words(self) -> str:
        """For the table."""
        again = ", ".join(f"{at_s:.0f}" for at_s in self.attempts_at_s[1:])
        tries = f", sent again after {again} s" if again else ""
        if self.finished:
            return f"finished{tries}"
        if self.exit.status is None:
            return f"still waiting after {self.exit.elapsed_s:.0f} s{tries}"
        said = self.exit.last_words[:_MAX_WORDS].replace("|", "\\|")
        return f"**dead** after {self.exit.elapsed_s:.0f} s{tries}: {said}"


def cases(holds_min: Sequence[float]) -> Iterator[Case]:
    """Every agent, setting, manner and hold; the longest holds first, since they take longest."""
    for hold_min in sorted(holds_min, reverse=True):
        for program, manners in _MANNERS.items():
            for patient in (False, True):
                yield from (Case(program, patient, manner, hold_min * 60) for manner in manners)


async def endure(chosen: Sequence[Case], programs: Programs) -> list[Endured]:
    """All cases side by side."""
    with tempfile.TemporaryDirectory(prefix="hivemind-endurance-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        settings = ProviderSettings(scope=LimitScope.CREDENTIAL)
        async with running_stage(folder, {one.host: settings for one in Program}, seed=0) as stage:
            async with running_tunnel(stage.ports) as tunnel, asyncio.TaskGroup() as group:
                way = Straight(tunnel.port, stage.authority)
                tasks = [
                    group.create_task(_endure(case, number * _START_EVERY_S, way, programs, stage, folder))
                    for number, case in enumerate(chosen)
                ]
            return [task.result() for task in tasks]


async def _endure(case: Case, start_s: float, way: Straight, programs: Programs, stage: Stage, folder: Path) -> Endured:
    agent = Agent(case.program, SimTask(case.name, 1, "result.txt"), folder / case.name, key=f"sk-sim-{case.name}")
    server = stage.servers[case.program.host]
    server.script(agent.key, [], then=Hold(case.hold_s, case.manner))
    started = launch(agent, replace(way, patient=case.patient), programs)
    await pause(start_s)
    ended = await run(started, folder / f"{case.name}.log", case.hold_s + _GRACE_S)
    finished = agent.has_finished
    sent_at = [
        view.at
        for view in server.requests()
        if view.method == "POST" and view.path in _MODEL_PATHS and credential(view.headers) == agent.key
    ]
    if finished:
        sent_at.pop()  # the closing turn
    result = Endured(case, finished, ended, [at - sent_at[0] for at in sent_at])
    click.echo(f"{case.name}: {result.words}")
    return result


def page(results: Sequence[Endured]) -> str:
    """The whole of docs/endurance.md."""
    by_case: Mapping[Case, Endured] = {result.case: result for result in results}
    manners = list(KeepAlive)
    parts = [_HEAD.format(claude=CLAUDE_VERSION, codex=CODEX_VERSION, grace=_GRACE_S // 60)]
    for program in Program:
        rows = [
            "| settings | hold | silent | comments | pings | blank lines |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for patient in (False, True):
            for hold_s in sorted({case.hold_s for case in by_case}):
                found = [by_case.get(Case(program, patient, manner, hold_s)) for manner in manners]
                cells = [one.words if one else "" for one in found]
                rows.append(f"| {'patient' if patient else 'own'} | {hold_s / 60:g} min | {' | '.join(cells)} |")
        parts += [f"## {program.value}\n", "\n".join(rows) + "\n"]
    return "\n".join(parts)


_HEAD = """\
# Endurance

<!-- Written by `make endurance`, which holds real agents for half an hour: change fleets/endurance.py instead. -->

How long real agents wait for an answer before they give up: Claude Code {claude} and Codex {codex}, each with its own
settings and with the ones that make it patient, all side by side against a simulated provider on this machine. The
first request of an agent is answered when its hold is over, counted from its first attempt; so is every attempt that
it makes until then. *Silent*: not even a response head comes. *Comments*: a head, and a comment of server-sent events
every 15 s. *Pings*: a head and the first event, and a `ping` event every 15 s. An agent has {grace} minutes after its
hold to finish its task, a file with one line.
"""


@click.command()
@click.option("--hold", "holds_min", type=float, multiple=True, help="Minutes; may be given again.", show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
def main(holds_min: tuple[float, ...], output: Path) -> None:
    """Hold real agents, and write down how long they wait."""
    try:
        programs = install()
    except NotInstalled as error:
        raise click.ClickException(str(error)) from error
    results = asyncio.run(endure(list(cases(holds_min or _HOLDS_MIN)), programs))
    output.write_text(page(results), encoding="utf-8")
    click.echo(f"written: {output}")


if __name__ == "__main__":
    main()
