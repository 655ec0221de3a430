"""`hivemind eta`: when a call would be sent. By itself, for agents ask it in loops."""

import click
import msgspec

from hivemind_addon.kernel.values.command import ForeseeWait
from hivemind_addon.proxy.api.command import WaitView
from hivemind_addon.proxy.api.replies import wait_words
from hivemind_addon.proxy.api.words import printable
from hivemind_addon.tools.commands.names import agent_names, pool_names
from hivemind_addon.tools.commands.options import port_option
from hivemind_addon.tools.commands.printing import Format, format_option, print_rows
from hivemind_addon.tools.commands.proxy import ask, one_line
from hivemind_addon.tools.launch.port import AGENT_VARIABLE


@click.command()
@click.argument("agent", envvar=AGENT_VARIABLE, shell_complete=agent_names)
@click.option("--pool", default="*", shell_complete=pool_names, help="A pool's name, its host, or a pattern of either.")
@click.option("--session", default="", help="Which of the agent's sessions; default: the one that called last.")
@click.option(
    "--input-tokens", type=click.IntRange(min=0), default=0, help="Default: as its last call leads to expect."
)
@click.option("--output-tokens", type=click.IntRange(min=0), default=0, help="Default: as many as its last call.")
@port_option
@format_option
@one_line
def eta(agent: str, pool: str, session: str, input_tokens: int, output_tokens: int, port: int, form: Format) -> None:
    """When would a call be sent that AGENT made now? Nothing is sent, and nobody's place changes.

    Inside of `hivemind exec` AGENT may be left out: it is the agent itself. One line for each pool that it has used,
    the last one first. An estimate: calls that come later may go before it, and limits are learned as they are met.

    \b
    Examples:
      hivemind eta reviewer-1
      hivemind eta reviewer-1 --input-tokens 150000
      hivemind eta nightly --pool api.openai.com --json | jq '.[0].starts_in_s'
    """
    asked = ForeseeWait(agent, session=session, pool=pool, input_tokens=input_tokens, output_tokens=output_tokens)
    said = ask(port, asked)
    if not said.done:
        raise click.ClickException(said.text)
    views = msgspec.convert(said.value, list[WaitView])
    if form is not Format.TABLE:
        print_rows([msgspec.structs.asdict(view) for view in views], {}, form)
    elif not views:
        click.echo(said.text)
    for view in views if form is Format.TABLE else ():
        click.echo(f"{printable(view.pool)}: {wait_words(view)}")
