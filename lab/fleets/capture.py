"""`python -m lab.fleets.capture`: small fleets of real agents, recorded without content; writes tests/captures/."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import click

from hivemind_addon.plugins.captures.file import read_capture
from hivemind_addon.sim.mitmdump import MitmdumpNotStarted
from lab.fleets.fleet import FleetSettings, Route, run_fleet
from lab.fleets.kinds import Program
from lab.fleets.programs import CLAUDE_CODE, CODEX, NotInstalled, install

CAPTURES = Path(__file__).resolve().parents[2] / "tests" / "captures"


def _small(agents: Mapping[Program, int]) -> FleetSettings:
    """Strict enough that calls wait and are tried again."""
    return FleetSettings(
        agents=agents,
        lines=2,
        faults={"529": 0.1, "500": 0.05, "reset-before-head": 0.05, "429-retry-after": 0.05},
        tokens_per_minute=120_000,
        concurrency=2,
        latency_s=0.3,
        agent_max_s=240,
    )


FLEETS: Mapping[str, FleetSettings] = {
    "claude-code": _small({Program.CLAUDE: 3}),
    "codex": _small({Program.CODEX: 3}),
    "mixed": _small({Program.CLAUDE: 2, Program.CODEX: 2}),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(sorted(FLEETS)))
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=CAPTURES, show_default=True)
def main(seed: int, only: tuple[str, ...], output: Path) -> None:
    """Record fleets of Claude Code and Codex before simulated providers; nothing leaves this machine."""
    try:
        programs = install((CLAUDE_CODE, CODEX))
    except NotInstalled as error:
        raise click.ClickException(str(error)) from error
    output.mkdir(parents=True, exist_ok=True)
    for name, settings in FLEETS.items():
        if only and name not in only:
            continue
        file = output / f"{name}.flow"
        file.unlink(missing_ok=True)
        options = (f"hivemind_capture={file.resolve()}", "hivemind_capture_content=false")
        try:
            result = asyncio.run(run_fleet(settings, Route.WHOLE, programs, seed, options))
        except MitmdumpNotStarted as error:
            raise click.ClickException(str(error)) from error
        capture = read_capture(file)
        attempts = sum(len(call.attempts) for call in capture.calls)
        click.echo(
            f"{file}: {result.finished} of {len(result.agents)} agents finished, {len(capture.calls)} calls, "
            f"{attempts} attempts, {file.stat().st_size // 1000} kB"
        )


if __name__ == "__main__":
    main()
