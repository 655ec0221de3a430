"""hivemind_addon: a scheduler for LLM agents that share one API key, inside mitmproxy.

Read it in this order:

    api/       what the parts say to each other: tickets, events, commands, reports; the control socket
    proxy/     what `mitmdump -s hivemind_addon` loads
        core/        the scheduler: pure. Takes `now`, answers values and events
        profile/     one provider as data (profiles/*.yaml)
        wire/        what providers and agents say: bytes and headers in, facts out
        runtime/     asyncio meets the core: one future a ticket, one timer
        observe/     consumers of events: log, statistics, metrics; deleting one changes no decision
        journal/     what happened to every request, what was spent and learned: written to SQLite
        capture/     recorded sessions: as values, and in mitmproxy's flow files, without secrets
        context/  conversations that a spent budget stopped, kept to be continued
        cluster/     proxies that schedule as one: the protocol, pure, and the engine's side
        page/        the status page for browsers
        mitm/        hold, admit, retry inside mitmproxy's HTTP layer; beside capture/ the only importer of it
    tools/     what `hivemind ...` does beside it; of the proxy they know its files and its profiles
        commands/    the command line: parse, call, print
        dash/        the terminal dashboard: a feed of reports, and one pure picture of them
        history/     the journal, asked
        captures/    recorded sessions, shown
        contexts/ kept conversations, exported to the agents' own formats
        launch/      what puts the agents that people have behind it: environment, CA bundle, supervisor, doctor
        setup/       what each agent tool needs in its own files
        locks/       who may use a named thing now: locks, leaders, at most N; for agents and scripts
        tasks/       many tasks with dependencies, run through the proxy, at most N at a time
        mcp/         the same for agents: a server of the Model Context Protocol
    lab/       what tries and measures it; loaded by no proxy
        sim/         a simulated provider and its agents, the demo, scenarios/*.yaml in virtual time
        cluster/     clusters in virtual time, with everything that can go wrong with them
        replay/      a recorded session run again in virtual time; sim/pytest_plugin.py makes captures tests
        evaluate/    what all of it is worth: scenarios by policies by seeds, as a report with charts
        papers/      what three papers claim, run again beside their own figures
        cluster/     many proxies as one: simulated in virtual time, with all that can fail
    system/    what the machine gives, and plain tools: clock, files, locks, SQLite, YAML with clear errors, globs

    resources.py  where the files lie that are not Python
"""

__version__ = "0.1.0"
