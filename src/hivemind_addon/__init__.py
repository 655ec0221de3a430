"""hivemind_addon: a scheduler for LLM agents that share an API key, inside mitmproxy.

Read the packages in this order:

    api/       values that all parts share: tickets, events, commands, reports; the control socket
    proxy/     everything that `mitmdump -s hivemind_addon` loads
        core/        the scheduler: pure; takes `now`, returns values and events
        profile/     providers as data (profiles/*.yaml)
        wire/        formats of providers and agents: from bytes and headers to facts
        runtime/     drives the core with asyncio: a future per ticket, and a timer
        observe/     reads events: log, statistics, metrics; changes no decision
        journal/     writes requests, spending and learned values to SQLite
        capture/     recorded sessions: as values, and in mitmproxy's flow files, without secrets
        context/     saves conversations, for example when a budget is spent, so that they can continue
        cluster/     several proxies that schedule as one: the pure protocol, and the engine
        page/        the status page for browsers
        mitm/        holds, admits and retries in mitmproxy's HTTP layer; only mitm/ and capture/ import mitmproxy
    tools/     the `hivemind` command; knows only the files and profiles of the proxy
        commands/    the command line: parse, call, print
        dash/        the terminal dashboard: a feed of reports, drawn by pure functions
        history/     queries on the journal
        captures/    views of recorded sessions
        contexts/    exports saved conversations to the formats of agents
        launch/      runs agents behind the proxy: environment, CA bundle, supervisor, doctor
        setup/       settings in the files of agent tools
        locks/       leases for agents and scripts: locks, leaders, at most N holders
        tasks/       runs many tasks with dependencies through the proxy, at most N at a time
        mcp/         a Model Context Protocol server with these tools for agents
    lab/       tests and measures the product; no proxy loads it
        sim/         a simulated provider with agents, the demo, scenarios/*.yaml in virtual time
        cluster/     simulated clusters in virtual time, with all faults
        replay/      replays a recorded session in virtual time; sim/pytest_plugin.py makes tests of captures
        evaluate/    compares policies over scenarios and seeds, as a report with charts
        papers/      repeats the claims of three papers beside their figures
    system/    access to the machine, and plain tools: clock, files, locks, SQLite, YAML with clear errors, globs

    resources.py  finds the files that are not Python
"""

__version__ = "0.1.0"
