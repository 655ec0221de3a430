"""hivemind_addon: a scheduler for LLM agents that share one API key, inside mitmproxy.

Read it in this order:

    core/      the scheduler: pure. Takes `now`, answers values and events
    wire/      what providers and agents say: bytes and headers in, facts out
    profile/   one provider as data (profiles/*.yaml)
    runtime/   asyncio meets the core: one future a ticket, one timer; and what the system gives: clock, locks, files
    mitm/      the only folder that imports mitmproxy: hold, admit, retry inside its HTTP layer
    capture/   recorded sessions: as values, without secrets, and in a terminal
    observe/   consumers of events: log, tally, metrics; deleting one changes no decision
    page/      the status page for browsers
    dash/      the terminal dashboard: a feed of reports, and one pure picture of them
    launch/    what puts the agents that people have behind it: environment, CA bundle, supervisor, doctor
    journal/   what happened to every request, what was spent and learned, in SQLite
    checkpoint/  conversations that a spent budget stopped, kept to be continued
    lease/     who may use a named thing now: locks, leaders, at most N; for agents and scripts
    tasks/     many tasks with dependencies, run through the proxy, at most N at a time
    mcp/       the same for agents: a server of the Model Context Protocol
    setup/     what each agent tool needs in its own files
    commands/  the command line: parse, call, print
    sim/       a simulated provider and its agents, to test against and for the demo; scenarios/*.yaml in virtual time
    evaluate/  what all of it is worth: scenarios by policies by seeds, as a report with charts
    replay/    a recorded session run again in virtual time: under other limits, and as a regression test
    compose.py the only place where objects meet
    cli.py     the command `hivemind`
    docs.py    the pages of docs/ that are written from the code
    words.py   numbers and failures as people say them
    trust.py   what makes a client trust the proxy
    resources.py  where the files lie that are not Python
    pytest_plugin.py  captures as tests
"""

__version__ = "0.1.0"
