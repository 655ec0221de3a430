"""Fleets of real agents against a simulated provider: who finishes, directly and through the proxy.

programs.py   the agents at pinned versions, installed into a cache folder
kinds.py      how each kind gets a task, and which provider each asks
agent.py      an agent: task, folder, command line and environment; its process
stage.py      the simulated providers, and the tunnel that leads to them alone
tunnel.py     ways on loopback: an HTTP proxy that knows nothing but CONNECT, or one port
proxy.py      the real proxy, brought back when it dies
inside.py     a script beside the addon in that proxy: keeps it on this machine, shows the addon's books
fleet.py      one run of one fleet; the addon's counts beside the providers'; all fleets
page.py       docs/fleets.md
endurance.py  how long agents wait: docs/endurance.md
"""
