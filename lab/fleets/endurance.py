"""How long agents wait: each of them kept from an answer for long, in every manner, all side by side.

A held agent's first request is answered when the hold is over, counted from the first attempt; so is every later
attempt until then. Writes docs/endurance.md. Takes as long as the hold.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import click

from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.faults import OK, ErrorStatus, Hold, KeepAlive
from hivemind_addon.sim.provider import LimitScope, ProviderSettings
from hivemind_addon.sim.request import credential
from hivemind_addon.sim.task import SimTask
from hivemind_addon.tools.launch.programs import load_programs
from lab.fleets.agent import Agent, Exit, Straight, launch, run
from lab.fleets.kinds import Program
from lab.fleets.programs import NotInstalled, Programs, install
from lab.fleets.stage import Stage, running_stage
from lab.fleets.tunnel import Tunnel
from lab.markdown import markdown_filled, markdown_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "endurance.md"
_HOLD_MIN = 30.0
_GRACE_S = 300
"""After the hold an agent has so long to finish."""
_START_EVERY_S = 2.0
"""Many processes that start at once would wait for each other, not for us."""
_LOOK_EVERY_S = 0.5
_MAX_WORDS = 200
_SHOWN_ATTEMPTS = 4
RETRY_AFTER_S = 20.0
HELD = tuple(program for program in Program if program is not Program.CODEX_SOCKETS)
"""A WebSocket has neither heads nor comments."""


class Manner(Enum):
    """The substitute for an agent's answer."""

    SILENT = "silent"
    BLANKS = "blank lines"
    COMMENTS = "comments"
    PINGS = "pings"
    LIMITED = "429s"
    OVERLOADED = "503s"

    @property
    def keep_alive(self) -> KeepAlive | None:
        """None: a refusal."""
        return _KEEP_ALIVES.get(self)


_KEEP_ALIVES = {
    Manner.SILENT: KeepAlive.NOTHING,
    Manner.BLANKS: KeepAlive.BLANK_LINES,
    Manner.COMMENTS: KeepAlive.COMMENTS,
    Manner.PINGS: KeepAlive.PINGS,
}
_STATUSES = {Manner.LIMITED: 429, Manner.OVERLOADED: 503}


@dataclass(frozen=True, slots=True)
class Case:
    """An agent and a hold."""

    program: Program
    patient: bool
    manner: Manner

    @property
    def name(self) -> str:
        """Fit for a task and a folder."""
        return f"{self.program.value.word}-{'patient' if self.patient else 'own'}-{self.manner.name.lower()}"


@dataclass(frozen=True, slots=True)
class Endured:
    """The end of a case."""

    case: Case
    finished: bool
    exit: Exit
    attempts_at_s: Sequence[float]
    """When the held request was sent, since the first time."""

    @property
    def words(self) -> str:
        """For the table."""
        again = [f"{at_s:.0f}" for at_s in self.attempts_at_s[1:]]
        shown = [*again[:_SHOWN_ATTEMPTS], *(("…", again[-1]) if len(again) > _SHOWN_ATTEMPTS else ())]
        tries = f", sent {len(again)} times more, after {', '.join(shown)} s" if again else ""
        if self.finished:
            return f"bears it{tries}"
        if self.exit.status is None:
            return f"still waiting after {self.exit.elapsed_s:.0f} s{tries}"
        said = self.exit.last_words[:_MAX_WORDS].replace("|", "\\|")
        return f"**dead** after {self.exit.elapsed_s:.0f} s{tries}: {said}"


def cases(programs: Sequence[Program]) -> Iterator[Case]:
    """Every agent in every manner, with the usual settings and, where there are such, with patient settings."""
    for program in programs:
        manners = [manner for manner in Manner if manner.keep_alive in (None, *program.value.manners)]
        for patient in (False, True) if _can_be_patient(program) else (False,):
            yield from (Case(program, patient, manner) for manner in manners)


def _can_be_patient(program: Program) -> bool:
    found = load_programs().find([program.value.package.command])
    return found is not None and bool(found[0].patience or found[0].arguments)


async def endure(chosen: Sequence[Case], programs: Programs, hold_s: float) -> list[Endured]:
    """All cases side by side."""
    with tempfile.TemporaryDirectory(prefix="hivemind-endurance-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        settings = ProviderSettings(scope=LimitScope.CREDENTIAL)
        hosts = dict.fromkeys(case.program.value.host for case in chosen)
        async with running_stage(folder, dict.fromkeys(hosts, settings), seed=0) as stage:
            async with Tunnel(stage.ports) as tunnel, asyncio.TaskGroup() as group:
                way = Straight(tunnel.port, stage.authority)
                tasks = [
                    group.create_task(_endure(case, hold_s, number * _START_EVERY_S, way, programs, stage, folder))
                    for number, case in enumerate(chosen)
                ]
            return [task.result() for task in tasks]


async def _endure(
    case: Case, hold_s: float, start_s: float, way: Straight, programs: Programs, stage: Stage, folder: Path
) -> Endured:
    task, key = SimTask(case.name, 1, "result.txt"), f"sk-sim-{case.name}"
    agent = Agent(case.program, task, folder / case.name, key, case.program.value.first)
    started = launch(agent, replace(way, patient=case.patient), programs)
    await pause(start_s)
    ending = asyncio.create_task(_hold(case, agent, stage, hold_s))
    try:
        ended = await run(started, folder / f"{case.name}.log", hold_s + _GRACE_S)
    finally:
        ending.cancel()
    sent_at = _sent_at(agent, stage)
    held = [at for at in sent_at if at <= sent_at[0] + hold_s]
    result = Endured(case, agent.has_finished, ended, [at - held[0] for at in held])
    click.echo(f"{case.name}: {result.words}")
    return result


async def _hold(case: Case, agent: Agent, stage: Stage, hold_s: float) -> None:
    """Keep an agent from answers until the hold is over."""
    server = stage.servers[case.program.value.host]
    if (keep_alive := case.manner.keep_alive) is not None:
        server.script(agent.key, [], then=Hold(hold_s, keep_alive))
        return
    server.script(agent.key, [], then=ErrorStatus(_STATUSES[case.manner], RETRY_AFTER_S))
    while not _sent_at(agent, stage):
        await pause(_LOOK_EVERY_S)
    await pause(hold_s)
    server.script(agent.key, [], then=OK)


def _sent_at(agent: Agent, stage: Stage) -> list[float]:
    """When the agent asked a model."""
    server = stage.servers[agent.program.value.host]
    return [view.at for view in server.requests() if view.method == "POST" and credential(view.headers) == agent.key]


def parts(results: Sequence[Endured], hold_s: float) -> dict[str, str]:
    """The generated parts of docs/endurance.md, of the programs that were held, by the names of the marks."""
    by_case = {result.case: result for result in results}
    made = {}
    for program in dict.fromkeys(case.program for case in by_case):
        rows = []
        for manner in Manner:
            found = [by_case.get(Case(program, patient, manner)) for patient in (False, True)]
            if any(found):
                rows.append(f"{manner.value} | {' | '.join(one.words if one else '' for one in found)}")
        table = markdown_table("instead of an answer | own settings | patient", rows)
        version = program.value.package.version
        made[program.value.word] = f"{table}\nVersion {version}, held for {hold_s / 60:g} minutes.\n"
    return made


@click.command()
@click.option("--hold", "hold_min", type=float, default=_HOLD_MIN, show_default=True, help="Minutes.")
@click.option("--only", multiple=True, type=click.Choice([one.value.word for one in HELD]))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
def main(hold_min: float, only: tuple[str, ...], output: Path) -> None:
    """Hold real agents, and write down how long they wait."""
    chosen = list(cases([program for program in HELD if not only or program.value.word in only]))
    try:
        programs = install(case.program.value.package for case in chosen)
    except NotInstalled as error:
        raise click.ClickException(str(error)) from error
    results = asyncio.run(endure(chosen, programs, hold_min * 60))
    before = (output if output.is_file() else PAGE).read_text(encoding="utf-8")
    output.write_text(markdown_filled(before, parts(results, hold_min * 60)), encoding="utf-8")
    click.echo(f"written: {output}")


if __name__ == "__main__":
    main()
