"""Where a proxy is looked for when nobody says where, and who asks. By itself: most commands need nothing else."""

from collections.abc import Mapping

DEFAULT = 8080
VARIABLE = "HIVEMIND_PORT"
"""Inside of `hivemind exec` the port of the proxy that it uses."""
AGENT_VARIABLE = "HIVEMIND_AGENT"
"""There the agent's own name."""


def chosen(environment: Mapping[str, str]) -> int:
    """The port of the proxy that whoever runs in this environment means."""
    text = environment.get(VARIABLE, "")
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) <= 65535 else DEFAULT
