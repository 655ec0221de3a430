"""What `hivemind` can do, by what people want: the list that `hivemind --help` prints, and where each command is."""

from collections.abc import Mapping, Sequence

from hivemind_addon.commands.group import Entry

SECTIONS: Mapping[str, Sequence[Entry]] = {
    "Begin": (
        Entry("demo", "commands.demo:demo", "See it work: a simulated fleet, direct and scheduled"),
        Entry("exec", "commands.launch:execute", "Run an agent through the proxy"),
        Entry("run", "commands.launch:run", "Start the proxy alone, for all agents"),
        Entry("env", "commands.launch:env", "What an agent needs, as lines for a shell"),
        Entry("setup", "commands.setup:setup", "What each agent tool needs in its own files"),
        Entry("doctor", "commands.launch:doctor", "Find what keeps an agent from being scheduled"),
        Entry("addon", "commands.checkout:addon", "The path of the script that mitmproxy loads"),
        Entry("completion", "commands.completion:completion", "Complete commands and names in your shell"),
    ),
    "Run many": (
        Entry("fleet", "commands.fleet:fleet", "Tasks with dependencies, at most N at a time"),
        Entry("submit", "commands.task:submit", "One task through the proxy, now or when it is its turn"),
        Entry("batch", "commands.task:batch", "Many tasks, from a file or from stdin"),
        Entry("task", "commands.task:task", "Wait for a task, look at it, end it"),
    ),
    "See": (
        Entry("top", "commands.watch:top", "Watch everything, and steer it"),
        Entry("status", "commands.watch:status", "The same once: limits, what waits and why"),
        Entry("agents", "commands.agents:agents", "Every agent: what it waits for, what it has used"),
        Entry("pools", "commands.pools:pools", "Every pool of limits: what is left, what waits"),
        Entry("wait", "commands.wait:wait", "When would my next call be sent?"),
        Entry("history", "commands.history:history", "What happened to every request, and what it cost"),
    ),
    "Steer": (
        Entry("pause", "commands.steering:pause", "Send nothing more upstream"),
        Entry("resume", "commands.steering:resume", "End a pause"),
        Entry("limit", "commands.steering:limit", "Let at most so many requests run at once"),
        Entry("priority", "commands.steering:priority", "Serve an agent before or after others"),
        Entry("front", "commands.steering:front", "Serve a request that waits next"),
        Entry("cancel", "commands.steering:cancel", "End a request that waits or runs"),
        Entry("budget", "commands.budget:budget", "What agents, groups and everyone may spend"),
        Entry("config", "commands.config:config", "The options of a running proxy; where files lie"),
    ),
    "Work together": (
        Entry("lease", "commands.lease:lease", "Locks, leaders, at most N"),
        Entry("mcp", "commands.mcp:mcp", "Tools for agents: the Model Context Protocol"),
    ),
    "Record and replay": (
        Entry("capture", "commands.capture:capture", "Record what agents do, and look at it"),
        Entry("checkpoint", "commands.checkpoint:checkpoint", "Conversations that a budget stopped: go on with them"),
        Entry("replay", "replay.command:replay", "A recording again, under other limits"),
    ),
    "Develop": (
        Entry("scenario", "sim.commands:scenario", "Simulated load: list it, read it, run it"),
        Entry("prove", "sim.commands:prove", "Every scenario against what it expects"),
        Entry("evaluate", "evaluate.commands:evaluate", "Scenarios by policies by seeds, with charts"),
        Entry("docs", "commands.checkout:docs", "Write the generated pages of docs/"),
    ),
}
