"""What `hivemind` can do, by what people want: the list that `hivemind --help` prints, and where each command is."""

from collections.abc import Mapping, Sequence

from hivemind_addon.tools.commands.group import Entry

SECTIONS: Mapping[str, Sequence[Entry]] = {
    "Begin": (
        Entry("demo", "tools.commands.demo:demo", "See it work: a simulated fleet, direct and scheduled"),
        Entry("exec", "tools.commands.launch:execute", "Run an agent through the proxy"),
        Entry("run", "tools.commands.launch:run", "Start the proxy alone, for all agents"),
        Entry("env", "tools.commands.launch:env", "What an agent needs, as lines for a shell"),
        Entry("setup", "tools.commands.setup:setup", "What each agent tool needs in its own files"),
        Entry("doctor", "tools.commands.launch:doctor", "Find what keeps an agent from being scheduled"),
        Entry("addon", "tools.commands.checkout:addon", "The path of the script that mitmproxy loads"),
        Entry("completion", "tools.commands.completion:completion", "Complete commands and names in your shell"),
    ),
    "Run many": (
        Entry("fleet", "tools.commands.fleet:fleet", "Tasks with dependencies, at most N at a time"),
        Entry("submit", "tools.commands.task:submit", "One task through the proxy, now or when it is its turn"),
        Entry("batch", "tools.commands.task:batch", "Many tasks, from a file or from stdin"),
        Entry("task", "tools.commands.task:task", "Wait for a task, look at it, end it"),
    ),
    "See": (
        Entry("top", "tools.commands.watch:top", "Watch everything, and steer it"),
        Entry("status", "tools.commands.watch:status", "The same once: limits, what waits and why"),
        Entry("agents", "tools.commands.agents:agents", "Every agent: what it waits for, what it has used"),
        Entry("pools", "tools.commands.pools:pools", "Every pool of limits: what is left, what waits"),
        Entry("wait", "tools.commands.wait:wait", "When would my next call be sent?"),
        Entry("history", "tools.commands.history:history", "What happened to every request, and what it cost"),
    ),
    "Steer": (
        Entry("pause", "tools.commands.steering:pause", "Send nothing more upstream"),
        Entry("resume", "tools.commands.steering:resume", "End a pause"),
        Entry("limit", "tools.commands.steering:limit", "Let at most so many requests run at once"),
        Entry("priority", "tools.commands.steering:priority", "Serve an agent before or after others"),
        Entry("front", "tools.commands.steering:front", "Serve a request that waits next"),
        Entry("cancel", "tools.commands.steering:cancel", "End a request that waits or runs"),
        Entry("budget", "tools.commands.budget:budget", "What agents, groups and everyone may spend"),
        Entry("config", "tools.commands.config:config", "The options of a running proxy; where files lie"),
    ),
    "Work together": (
        Entry("lease", "tools.commands.lease:lease", "Locks, leaders, at most N"),
        Entry("mcp", "tools.commands.mcp:mcp", "Tools for agents: the Model Context Protocol"),
    ),
    "Record and replay": (
        Entry("capture", "tools.commands.capture:capture", "Record what agents do, and look at it"),
        Entry(
            "checkpoint", "tools.commands.checkpoint:checkpoint", "Conversations that a budget stopped: go on with them"
        ),
        Entry("replay", "lab.replay.command:replay", "A recording again, under other limits"),
    ),
    "Develop": (
        Entry("scenario", "lab.sim.commands:scenario", "Simulated load: list it, read it, run it"),
        Entry("prove", "lab.sim.commands:prove", "Every scenario against what it expects"),
        Entry("evaluate", "lab.evaluate.commands:evaluate", "Scenarios by policies by seeds, with charts"),
        Entry("docs", "tools.commands.checkout:docs", "Write the generated pages of docs/"),
    ),
}
