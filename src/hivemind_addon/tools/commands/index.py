"""What `hivemind` can do, by what people want: the list that `hivemind --help` prints, and where each command is."""

from collections.abc import Mapping, Sequence

from hivemind_addon.tools.commands.group import CommandEntry

SECTIONS: Mapping[str, Sequence[CommandEntry]] = {
    "Begin": (
        CommandEntry("demo", "tools.commands.demo:demo", "See it work: a simulated fleet, direct and scheduled"),
        CommandEntry("sim", "lab.sim.standalone:sim", "A simulated provider: try any agent without a key"),
        CommandEntry("exec", "tools.commands.execute:execute", "Run an agent through the proxy"),
        CommandEntry("run", "tools.commands.run:run", "Start the proxy alone, for all agents", also=("proxy",)),
        CommandEntry("env", "tools.commands.execute:env", "What an agent needs, as lines for a shell"),
        CommandEntry("setup", "tools.commands.setup:setup", "What each agent tool needs in its own files"),
        CommandEntry("doctor", "tools.commands.doctor:doctor", "Find what keeps an agent from being scheduled"),
        CommandEntry("profile", "tools.commands.profile:profile", "A provider of your own: is it understood?"),
        CommandEntry("addon", "tools.commands.checkout:addon", "The path of the script that mitmproxy loads"),
        CommandEntry("completion", "tools.commands.completion:completion", "Complete commands and names in your shell"),
    ),
    "Run many": (
        CommandEntry("fleet", "tools.commands.fleet:fleet", "Tasks with dependencies, at most N at a time"),
        CommandEntry("submit", "tools.commands.task:submit", "One task through the proxy, now or when it is its turn"),
        CommandEntry("batch", "tools.commands.task:batch", "Many tasks, from a file or from stdin"),
        CommandEntry("task", "tools.commands.task:task", "Wait for a task, look at it, end it"),
    ),
    "See": (
        CommandEntry("top", "tools.commands.watch:top", "Watch everything, and steer it"),
        CommandEntry("open", "tools.commands.open_page:open_page", "The page in your browser, with the right to steer"),
        CommandEntry("status", "tools.commands.watch:status", "The same once: limits, what waits and why"),
        CommandEntry("agents", "tools.commands.watch:agents", "Every agent: what it waits for, what it has used"),
        CommandEntry("pools", "tools.commands.watch:pools", "Every pool of limits: what is left, what waits"),
        CommandEntry("wait", "tools.commands.wait:wait", "When would my next call be sent?"),
        CommandEntry("history", "tools.commands.history:history", "What happened to every request, and what it cost"),
    ),
    "Steer": (
        CommandEntry("pause", "tools.commands.steering:pause", "Send nothing more upstream"),
        CommandEntry("resume", "tools.commands.steering:resume", "End a pause"),
        CommandEntry("limit", "tools.commands.steering:limit", "Let at most so many requests run at once"),
        CommandEntry("priority", "tools.commands.steering:priority", "Serve an agent before or after others"),
        CommandEntry("front", "tools.commands.steering:front", "Serve a request that waits next"),
        CommandEntry("cancel", "tools.commands.steering:cancel", "End a request that waits or runs"),
        CommandEntry("budget", "tools.commands.budget:budget", "What agents, groups and everyone may spend"),
        CommandEntry("agent", "tools.commands.agent:agent", "Names and secrets of agents: who may use the proxy"),
        CommandEntry("config", "tools.commands.config:config", "The options of a running proxy; where files lie"),
    ),
    "Work together": (
        CommandEntry("lease", "tools.commands.lease:lease", "Locks, leaders, at most N"),
        CommandEntry("mcp", "tools.commands.mcp:mcp", "Tools for agents: the Model Context Protocol", also=("serve",)),
    ),
    "Record and replay": (
        CommandEntry("capture", "tools.commands.capture:capture", "Record what agents do, and look at it"),
        CommandEntry(
            "context",
            "tools.commands.context:context",
            "Conversations of all agents: read them, go on with them",
            also=("checkpoint",),  # its name until 0.2; gone with the version after it
        ),
        CommandEntry("recall", "tools.commands.recall:recall", "A tool result that was taken out of a context"),
        CommandEntry("replay", "lab.replay.command:replay", "A recording again, under other limits"),
    ),
    "Develop": (
        CommandEntry("scenario", "lab.sim.commands:scenario", "Simulated load: list it, read it, run it"),
        CommandEntry("prove", "lab.sim.commands:prove", "Every scenario against what it expects"),
        CommandEntry("evaluate", "lab.evaluate.commands:evaluate", "Scenarios by policies by seeds, with charts"),
        CommandEntry("papers", "lab.papers.commands:papers", "What three papers claim, run again beside theirs"),
        CommandEntry("docs", "tools.commands.checkout:docs", "Write the generated pages of docs/"),
    ),
}
