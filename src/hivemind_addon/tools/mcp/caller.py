"""Who calls: the agent that started the server, and the proxy that it goes through."""

from collections.abc import Mapping
from glob import escape
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from hivemind_addon.api.proxy_user import clean
from hivemind_addon.tools.launch.environment import LOOPBACK, PROXY_VARIABLES
from hivemind_addon.tools.launch.port import AGENT_VARIABLE, DEFAULT_PORT, PORT_VARIABLE
from hivemind_addon.tools.tasks.model import RUNNER_VARIABLE, TASK_VARIABLE


class Caller(Struct, frozen=True):
    """One agent, as the proxy knows it."""

    agent: str
    """Empty: it is not known."""
    port: int
    """Of its proxy."""
    task: str = ""
    """The task that it is; empty: none."""
    runner: str = ""
    """The socket of the runner that started it; empty: none did."""

    @property
    def glob(self) -> str:
        """What matches this agent and no other one, whatever its name has in it."""
        return escape(self.agent)


def caller_of(environment: Mapping[str, str], *, agent: str = "", port: int | None = None) -> Caller:
    """Who starts the server: what is told, else what `hivemind exec` has set, else what its proxy variable says."""
    user, its_port = _proxy_user(environment)
    return Caller(
        agent=clean(agent or environment.get(AGENT_VARIABLE, "") or user),
        port=port or _port(environment.get(PORT_VARIABLE, "")) or its_port or DEFAULT_PORT,
        task=environment.get(TASK_VARIABLE, ""),
        runner=environment.get(RUNNER_VARIABLE, ""),
    )


def _proxy_user(environment: Mapping[str, str]) -> tuple[str, int | None]:
    """Who a proxy variable says that we are, and where, if that proxy is on this machine."""
    for name in (*PROXY_VARIABLES, *map(str.lower, PROXY_VARIABLES)):
        try:
            url = urlsplit(environment.get(name, ""))
            if url.hostname in LOOPBACK and url.username:
                return unquote(url.username), url.port
        except ValueError:
            continue  # no address
    return "", None


def _port(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) < 65_536 else None
