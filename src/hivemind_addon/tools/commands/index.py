"""The commands of `hivemind` by purpose: the list that `hivemind --help` prints, and where each command is."""

from collections.abc import Mapping, Sequence

from hivemind_addon.tools.commands.group import CommandEntry

SECTIONS: Mapping[str, Sequence[CommandEntry]] = {
    "Begin": (
        CommandEntry("demo", "sim.demo_command:demo", "See it work: a simulated fleet, direct and scheduled"),
        CommandEntry("sim", "sim.standalone:sim", "A simulated provider: try any agent without a key"),
        CommandEntry("exec", "tools.commands.execute:execute", "Run an agent through the proxy"),
        CommandEntry("run", "tools.commands.run:run", "Start the proxy alone, for all agents"),
        CommandEntry("logs", "tools.commands.service:logs", "What the proxy in the background says"),
        CommandEntry("stop", "tools.commands.service:stop", "End the proxy, in order or at once"),
        CommandEntry("setup", "tools.commands.setup:setup", "What agents, shells and mitmproxy need"),
        CommandEntry("doctor", "tools.commands.doctor:doctor", "Find what keeps an agent from being scheduled"),
    ),
    "See": (
        CommandEntry("top", "tools.commands.watch:top", "Watch everything, and steer it"),
        CommandEntry("open", "tools.commands.open_page:open_page", "The page in your browser, which steers"),
        CommandEntry("status", "tools.commands.watch:status", "The same once; every agent, every pool"),
        CommandEntry("eta", "tools.commands.eta:eta", "When would my next call be sent?"),
        CommandEntry("history", "tools.commands.history:history", "What happened to every request, and what it cost"),
    ),
    "Steer": (
        CommandEntry("pause", "tools.commands.steering:pause", "Send nothing more upstream"),
        CommandEntry("resume", "tools.commands.steering:resume", "End a pause"),
        CommandEntry("cap", "tools.commands.steering:cap", "Let at most so many requests run at once"),
        CommandEntry("priority", "tools.commands.steering:priority", "Serve an agent before or after others"),
        CommandEntry("front", "tools.commands.steering:front", "Serve a request that waits next"),
        CommandEntry("cancel", "tools.commands.steering:cancel", "End a request that waits or runs"),
        CommandEntry("budget", "tools.commands.budget:budget", "What agents, groups and everyone may spend"),
        CommandEntry("agent", "tools.commands.agent:agent", "Names and secrets of agents: who may use the proxy"),
        CommandEntry("config", "tools.commands.config:config", "Options, profiles, schemas; where files lie"),
    ),
    "Run many": (
        CommandEntry("fleet", "plugins.fleets.commands.fleet:fleet", "Tasks with dependencies, at most N at a time"),
        CommandEntry(
            "task", "plugins.fleets.commands.task:task", "Submit tasks, wait for them, look at them, end them"
        ),
        CommandEntry("lease", "plugins.fleets.commands.lease:lease", "Locks, leaders, at most N"),
        CommandEntry("mcp", "tools.commands.mcp:mcp", "Tools for agents: the Model Context Protocol"),
    ),
    "Record and replay": (
        CommandEntry("capture", "plugins.captures.commands.capture:capture", "Record what agents do, and look at it"),
        CommandEntry(
            "context", "plugins.contexts.commands.context:context", "Conversations: read them, go on with them"
        ),
        CommandEntry("replay", "sim.replay.command:replay", "A recording again, under other limits"),
    ),
    "Develop": (CommandEntry("lab", "tools.commands.lab:lab", "Scenarios, proof, docs"),),
}
