"""hivemind_addon: a scheduler for LLM agents that share an API key, inside mitmproxy.

Imports between the packages run one way: each may import those above it.

    kernel/    decides who may send now. Pure: time and randomness are arguments; imports msgspec only
        values/      tickets, events, commands, spending, the snapshot
        limits/      meters of stated limits, the breaker, and all that bounds a pool
        order/       the fair order: lanes, shares, the prompt cache, the next ticket
        inference/   limits that no header states, inferred from refusals
    formats/   turns bytes and headers into facts, and back. Pure
        base/        JSON without reading it whole, YAML with clear errors, globs, packaged files
        profile/     a provider as data (profiles/*.yaml)
        wire/        what providers and agents send: requests, answers, streams, errors, hints
    proxy/     everything that `mitmdump -s hivemind_addon` loads
        system/      access to the machine: clock, files, locks, SQLite, sockets
        api/         reports, the control socket, and the words for people
        page/        the status page for browsers
        record/      reads events: history, statistics, metrics, traces; changes no decision
        run/         drives the kernel with asyncio: a future per ticket, and a timer
        journal/     writes requests, spending and learned values to SQLite
        host/        stands in for parts of mitmproxy: its HTTP layer, connections, hooks
        gate/        holds, admits, judges and retries a request; options; what people see in mitmweb
    tools/     the `hivemind` command; knows the proxy by its control socket and its files
        commands/    the command line: parse, call, print
        dash/        the terminal dashboard: a feed of reports, drawn by pure functions
        history/     queries on the journal
        launch/      runs agents behind the proxy: environment, CA bundle, supervisor, doctor
        setup/       settings in the files of agent tools
        mcp/         a Model Context Protocol server with these tools for agents
    plugins/   features that a plain proxy can do without, each with its commands
        cluster/     several proxies that schedule as one: the pure protocol, and the engine
        captures/    recorded sessions: as values, and in mitmproxy's flow files, without secrets
        contexts/    saves conversations, for example when a budget is spent, so that they can continue
        fleets/      tasks with dependencies, at most N at a time; leases: locks, leaders, at most N holders
    sim/       the simulated provider, and everything simulated that users start: demo, scenarios, replay
        dialect/     the answers of a simulated provider in each wire format
        replay/      replays a recorded session in virtual time; pytest_plugin.py makes tests of captures
    lab/       the pytest plug-in under its public name
"""

__version__ = "0.1.0"
