"""`hivemind replay`: parse, call, print."""

from pathlib import Path

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from hivemind_addon.plugins.captures.model import Capture, NotACapture
from hivemind_addon.proxy.system.stop_signals import end_with_us
from hivemind_addon.sim.mitmdump import MitmdumpNotStarted
from hivemind_addon.sim.policy import COMPARED, NAMED, Policy, policy_named
from hivemind_addon.sim.policy_file import UnknownPolicy
from hivemind_addon.sim.replay.chains import DELIVERED
from hivemind_addon.sim.replay.limits import BadLimit, GivenLimit, given_limit
from hivemind_addon.sim.replay.reconstruct import NothingToReplay, fitted_to
from hivemind_addon.sim.replay.tables import what_if_view
from hivemind_addon.sim.replay.whatif import what_if
from hivemind_addon.sim.trace import read_recorded
from hivemind_addon.tools.commands.options import in_one_line

_MAX_COPIES = 1000
_PACES = 0.1, 1000.0
_VIRTUAL = ("copies", "limits", "policies", "seeds", "fit")
"""Options that a real replay does not take."""


def _limits(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> tuple[GivenLimit, ...]:
    try:
        return tuple(map(given_limit, texts))
    except BadLimit as error:
        raise click.BadParameter(str(error)) from error


def _copies(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """`x5`, `5`."""
    digits = text.strip().lower().removeprefix("x")
    if not (digits.isascii() and digits.isdecimal()) or not 1 <= int(digits) <= _MAX_COPIES:
        raise click.BadParameter(f"{text!r} is no factor; write x1 to x{_MAX_COPIES}")
    return int(digits)


def _pace(_context: click.Context, _option: click.Parameter, text: str) -> float:
    """`x10`, `0.5`."""
    try:
        pace = float(text.strip().lower().removeprefix("x"))
    except ValueError:
        pace = 0.0
    if not _PACES[0] <= pace <= _PACES[1]:
        raise click.BadParameter(f"{text!r} is no pace; write x{_PACES[0]:g} to x{_PACES[1]:g}")
    return pace


def _policies(_context: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> tuple[Policy, ...]:
    try:
        return tuple(dict.fromkeys(map(policy_named, names))) or COMPARED
    except UnknownPolicy as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--agents", "copies", callback=_copies, default="x1", metavar="xN", help="So many times the recorded agents."
)
@click.option(
    "--limit",
    "limits",
    callback=_limits,
    multiple=True,
    metavar="WHAT=N/UNIT",
    help="A limit instead of the recorded one of its kind: requests=60/min, input_tokens=450k/min:window, "
    "concurrency=5, requests=none; @GLOB behind it: only for these pools. May be given again.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    callback=_policies,
    metavar="NAME",
    help=f"Only this policy; may be given again. One of {', '.join(one.name for one in NAMED)}; also "
    "hivemind-without-X, only-X, and FILE.py:Class of your own. "
    f"Without this option {', '.join(one.name for one in COMPARED)} are compared.",
)
@click.option("--seeds", type=click.IntRange(1, 100), default=1, help="Runs of each policy; medians are shown.")
@click.option("--fit", is_flag=True, help="Limits that explain the refusals, for those that no header states.")
@click.option("--real", is_flag=True, help="As it was, but through a real mitmdump against answers as recorded.")
@click.option("--pace", callback=_pace, default="x1", metavar="xN", help="With --real: so many times as fast.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.pass_context
def replay(
    context: click.Context,
    file: Path,
    copies: int,
    limits: tuple[GivenLimit, ...],
    policies: tuple[Policy, ...],
    seeds: int,
    pace: float,
    *,
    fit: bool,
    real: bool,
    as_json: bool,
) -> None:
    """What would have become of a recorded session under other limits, with more agents, by other policies.

    Virtual time: a night takes a second, nothing is sent. FILE is a capture (`hivemind run --capture FILE`), a trace,
    a flow file (`mitmdump -w FILE`) or HAR. The exit status is 1 when the scheduler would have lost an agent.

    With --real the recorded requests go through a proxy of their own to a simulated provider on this machine, which
    answers as recorded; the exit status is 1 when a call that was delivered then is not now.

    \b
    Examples:
      hivemind replay night.flow
      hivemind replay night.flow --agents x5 --limit requests=50/min
      hivemind replay night.flow --policy hivemind --seeds 10 --json
      hivemind replay night.flow --real --pace x10
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    named = [name for name in (*_VIRTUAL, "pace") if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if unfit := [name for name in named if (name == "pace") != real]:
        option = next(one.opts[0] for one in context.command.params if one.name == unfit[0])
        raise click.UsageError(f"{option} {'does not go' if real else 'goes only'} with --real")
    with in_one_line(NotACapture):
        capture = read_recorded(file)
    if real:
        _replay_real(capture, pace, as_json=as_json)
        return
    errors = Console(stderr=True, highlight=False)
    try:
        with errors.status("replaying") as status:
            result = what_if(
                capture,
                policies=policies,
                seeds=seeds,
                given=limits,
                copies=copies,
                fitted=fitted_to(capture) if fit else (),
                tell=status.update,
            )
    except (NothingToReplay, BadLimit) as error:
        raise click.ClickException(f"{file}: {error}") from error
    if as_json:
        for note in result.notes:
            errors.print(f"note: {note}", style="yellow", markup=False)
        click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        console = Console(highlight=False)
        console.print(what_if_view(result, file.name, console.width))
    if any(run.lost for nights in result.policies if nights.policy == "hivemind" for run in nights.runs):
        context.exit(1)


def _replay_real(capture: Capture, pace: float, *, as_json: bool) -> None:
    from hivemind_addon.sim import real_replay  # noqa: PLC0415 - it takes a while to load

    end_with_us()
    try:
        with Console(stderr=True, highlight=False).status("replaying") as status:
            result = real_replay.run_real(capture, pace=pace, tell=status.update)
    except MitmdumpNotStarted as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        Console(highlight=False).print(real_replay.real_view(result))
    if any(call.recorded.end == DELIVERED and call.differs for call in result.calls):
        click.get_current_context().exit(1)
