"""`hivemind doctor`: what keeps an agent from being scheduled."""

import os
import sys

import click
import msgspec

from hivemind_addon.api.control import UnreadableReport
from hivemind_addon.system.clock import SystemClock
from hivemind_addon.system.folders import FolderNotPrivate
from hivemind_addon.system.typed import DocumentError
from hivemind_addon.tools.commands.config import read_options
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.launch import doctor as doctors
from hivemind_addon.tools.launch.alert import send_test
from hivemind_addon.tools.launch.finding import Severity
from hivemind_addon.tools.launch.programs import load_programs

_one_line = in_one_line(UnreadableReport, FolderNotPrivate, DocumentError)


@click.command()
@port_option
@click.option("--agent", "program", metavar="PROGRAM", help="The program in question: claude, codex, gemini, …")
@click.option("--alert", is_flag=True, help="Only send a test alert, as hivemind_notify or HIVEMIND_NOTIFY says.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON list.")
@_one_line
def doctor(port: int, program: str | None, *, alert: bool, as_json: bool) -> None:
    """Find what keeps an agent from being scheduled, and say the cure; the exit status is 1 when something does.

    It looks at the environment that it is started in: start it where the agent starts, or through `hivemind exec`.

    \b
    Examples:
      hivemind exec -- hivemind doctor
      hivemind doctor --agent claude
      hivemind doctor --alert
      hivemind doctor --json | jq '.[] | select(.verdict == "bad")'
    """
    table = load_programs()
    if program is not None and program not in table.programs:
        raise click.BadParameter(
            f"no facts about {program!r}; there are {', '.join(table.programs)}", param_hint="--agent"
        )
    chosen = table.programs[program] if program else None
    clock = SystemClock()
    if alert:
        found = send_test(_notify_option(port), os.environ, clock=clock)
    else:
        found = doctors.examine(os.environ, port=port, program=chosen, table=table, clock=clock)
    findings = []
    for finding in found:
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.verdict.value:<4}  {finding.text}")  # as it is found: some take a moment
    if as_json:
        click.echo(msgspec.json.encode(findings).decode())
    if any(finding.verdict is Severity.BAD for finding in findings):
        sys.exit(1)


def _notify_option(port: int) -> str:
    """As the running proxy shows it; empty: there is none."""
    try:
        return next(str(view.value) for view in read_options(port) if view.name == "hivemind_notify")
    except click.ClickException:
        return ""
