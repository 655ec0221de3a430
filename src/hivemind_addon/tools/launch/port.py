"""Where a proxy is looked for when nobody says where, and who asks. By itself: most commands need nothing else."""

DEFAULT_PORT = 8080
PORT_VARIABLE = "HIVEMIND_PORT"
"""Inside of `hivemind exec` the port of the proxy that it uses."""
AGENT_VARIABLE = "HIVEMIND_AGENT"
"""There the agent's own name."""
