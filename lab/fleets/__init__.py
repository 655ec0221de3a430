"""Fleets of real agents against a simulated provider: who finishes, directly and through the proxy.

programs.py   the agents at pinned versions, installed into a cache folder
kinds.py      how each kind gets a task, and which provider each asks
agent.py      an agent: task, folder, command line and environment
process.py    runs a command in a process group of its own
stage.py      the simulated providers, and the tunnel that leads to them alone
tunnel.py    an HTTP proxy that knows nothing but CONNECT
proxy.py      the real proxy, brought back when it dies
inside.py     a script beside the addon in that proxy: keeps it on this machine, shows the addon's books
books.py      the addon's own counts, beside what the providers counted
fleet.py      one run of one fleet
page.py       docs/fleets.md
endurance.py  how long agents wait: docs/endurance.md
"""
