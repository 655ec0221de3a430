"""The port on which commands look for a proxy, and what is named after it. By itself: most commands need no more."""

from pathlib import Path

from hivemind_addon.proxy.system.folders import state_folder

DEFAULT_PORT = 8080
PORT_VARIABLE = "HIVEMIND_PORT"
"""Inside of `hivemind exec` the port of the proxy that it uses."""
SECRET_VARIABLE = "HIVEMIND_AGENT_SECRET"  # noqa: S105 - its name
"""The secret of the agent that AGENT_VARIABLE names, where a proxy asks for it: `ps` shows no variables."""
AGENT_VARIABLE = "HIVEMIND_AGENT"
"""There the agent's own name."""


def log_file(port: int) -> Path:
    """What the background proxy of a port says."""
    return state_folder() / f"proxy-{port}.log"
