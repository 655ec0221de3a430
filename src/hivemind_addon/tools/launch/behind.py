"""What one agent needs to be behind the proxy: its environment, and what it asks for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hivemind_addon.api.report import ProxyView
from hivemind_addon.api.ticket import Delivery
from hivemind_addon.tools.launch.bundle import is_ours, write_bundle
from hivemind_addon.tools.launch.environment import changes, proxy_url
from hivemind_addon.tools.launch.port import AGENT_VARIABLE, PORT_VARIABLE
from hivemind_addon.tools.launch.programs import ProgramTable


def environment_changes(
    proxy: ProxyView,
    base: Mapping[str, str],
    *,
    agent: str,
    words: Sequence[str],
    table: ProgramTable,
    patience: bool = True,
) -> dict[str, str]:
    """What to set on top of `base` for one agent. Writes the bundle of certificates. Raises NoBundle, OSError."""
    users = {base[name] for name in table.ca_variables if base.get(name)}
    bundle = write_bundle(Path(proxy.confdir), sorted(file for file in users if not is_ours(file)))
    changed = changes(
        base,
        url=proxy_url(proxy.port, agent=agent, words=words),
        bundle=bundle,
        hosts=proxy.hosts,
        table=table,
        patience=patience,
    )
    return changed | {AGENT_VARIABLE: agent, PORT_VARIABLE: str(proxy.port)}


def asked_words(delivery: Delivery, *, priority: str | None = None, waits_s: int = 0, task: str = "") -> list[str]:
    """What an agent asks for in its proxy password. `task`: the id that its requests are kept under."""
    return [
        *([delivery.value] if delivery is not Delivery.AUTO else ()),
        *([f"prio-{priority}"] if priority else ()),
        *([f"wait-{waits_s}"] if waits_s else ()),
        *([f"task-{task}"] if task else ()),
    ]
