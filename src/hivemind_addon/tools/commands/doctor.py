"""`hivemind doctor`: what keeps an agent from being scheduled."""

import os
import sys
import textwrap
from collections.abc import Sequence

import click
import msgspec

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.proxy.api.control import UnreadableReport
from hivemind_addon.proxy.api.words import several
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.proxy.system.terminal import terminal_width
from hivemind_addon.tools.commands.config import read_options
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.launch import doctor as doctors
from hivemind_addon.tools.launch.alert import send_test
from hivemind_addon.tools.launch.finding import Finding, Severity
from hivemind_addon.tools.launch.programs import Program, load_programs

_one_line = in_one_line(UnreadableReport, FolderNotPrivate, DocumentError)


@click.command()
@port_option
@click.option("--agent", "program", metavar="PROGRAM", help="The program in question: claude, codex, cline, … any.")
@click.option("--alert", is_flag=True, help="Only send a test alert, as hivemind_notify or HIVEMIND_ALERTS says.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON list: id, verdict, text, cure.")
@_one_line
def doctor(port: int, program: str | None, *, alert: bool, as_json: bool) -> None:
    """Find what keeps an agent from being scheduled, and say the cure; the exit status is 1 when something does.

    It looks at the environment that it is started in: start it where the agent starts, or through `hivemind exec`. The
    last line is the verdict. Each finding has an id that stays the same in all versions (`--json`), and a cure.

    \b
    Examples:
      hivemind exec -- hivemind doctor
      hivemind doctor --agent claude
      hivemind doctor --agent my-agent
      hivemind doctor --alert
      hivemind doctor --json | jq '.[] | select(.verdict == "bad") | .id, .cure'
    """
    table = load_programs()
    known = table.find(program.split()) if program else None
    chosen = known[0] if known else table.programs.get(program or "")
    clock = SystemClock()
    if alert:
        found = send_test(_notify_option(port), os.environ, clock=clock)
    else:
        unknown = program if program and chosen is None else ""
        found = doctors.examine(os.environ, port=port, program=chosen, table=table, clock=clock, unknown=unknown)
    findings = []
    for finding in found:
        findings.append(finding)
        if not as_json:
            _say(f"{finding.verdict.value:<4}  {finding.text}", indent=6)  # as it is found: some take a moment
    bad = [finding for finding in findings if finding.verdict is Severity.BAD]
    if as_json:
        rows = [{"id": one.id, "verdict": one.verdict, "text": one.text, "cure": one.cure} for one in findings]
        click.echo(msgspec.json.encode(rows).decode())
    else:
        _say(_alert_verdict(findings) if alert else _verdict(findings, bad, chosen, program or "an agent"))
    if bad or (chosen and chosen.tunnelled and not alert):
        sys.exit(1)


def _say(line: str, *, indent: int = 0) -> None:
    """Folded at words where a terminal shows it, whole for what searches lines."""
    if sys.stdout.isatty():
        line = textwrap.fill(
            line, terminal_width(), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )
    click.echo(line)


def _verdict(findings: Sequence[Finding], bad: Sequence[Finding], program: Program | None, who: str) -> str:
    if program and program.tunnelled:
        return f"verdict: {who} is not scheduled, wherever it starts"
    if not bad:
        is_sure = program and program.base_url_variables
        by_base_url = any(one.id == "way.base-url" for one in findings) and not is_sure
        return f"verdict: {who} that starts here{' and reads that base URL' if by_base_url else ''} is scheduled"
    return f"verdict: {several(len(bad), 'thing')} in the way of {who} that starts here; first: {bad[0].cure}"


def _alert_verdict(findings: Sequence[Finding]) -> str:
    if all(finding.verdict is Severity.GOOD for finding in findings):
        return "verdict: alerts reach their services"
    return f"verdict: not every alert is known to arrive; first: {next(one.cure for one in findings if one.cure)}"


def _notify_option(port: int) -> str:
    """As the running proxy shows it; empty: there is none."""
    try:
        return next(str(view.value) for view in read_options(port) if view.name == "hivemind_notify")
    except click.ClickException:
        return ""
