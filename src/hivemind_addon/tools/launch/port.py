"""The port on which commands look for a proxy, and variables that say it. By itself: most commands need no more."""

DEFAULT_PORT = 8080
PORT_VARIABLE = "HIVEMIND_PORT"
"""Inside of `hivemind exec` the port of the proxy that it uses."""
AGENT_VARIABLE = "HIVEMIND_AGENT"
"""There the agent's own name."""
