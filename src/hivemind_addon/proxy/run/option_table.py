"""The table of the `hivemind_*` options, as mitmproxy declares them and `docs/options.md` lists them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hivemind_addon.proxy.record.contexts import DEFAULT_WARNING
from hivemind_addon.proxy.system.engine_url import (
    CLUSTER_NAME_VARIABLE,
    CLUSTER_VARIABLE,
    DEFAULT_CLUSTER,
    PASSWORD_VARIABLE,
)

VIEW_KEEP, JOURNAL_KEEP, KEEP_CONTEXTS = "500 flows, 256 MB", "30 days, 512 MB", "idle"
JOINED, APART = "joined", "apart"
"""Whether agents of one name at several machines of a cluster are one agent."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option as mitmproxy knows it."""

    name: str
    type: Any
    default: object
    help: str
    is_path: bool = False
    """Given while the proxy runs it has to be absolute: whoever asks is in another folder than the proxy."""
    settable: bool = True
    """Whether a person may set it while the proxy runs, with `hivemind config set`."""
    may_hold_secrets: bool = False
    """Of a command line only the program is shown: what follows may be a key or an address with one."""
    reaches_out: bool = False
    """It runs a program, or says where keys go, who may use them, and how much."""

    @property
    def is_guarded(self) -> bool:
        """Whether an agent that may set options still may not set this one."""
        return self.is_path or self.reaches_out


OPTIONS = (
    Option(
        "hivemind_profiles",
        str,
        "",
        "Folder of your own provider profiles (*.yaml), beside or instead of the packaged ones; read again when one "
        "changes.",
        is_path=True,
    ),
    Option(
        "hivemind_tools",
        str,
        "",
        "Services that are no models whose calls are scheduled, too: ready profiles by name, with the hosts of those "
        "that have none (`github,tavily,mcp=localhost:9000`; docs/tools.md). Empty: none, and none is intercepted.",
        reaches_out=True,
    ),
    Option(
        "hivemind_agents",
        str,
        "",
        "File (YAML) with budgets, priorities and weights of agents and groups; read again when it changes.",
        is_path=True,
    ),
    Option(
        "hivemind_agent_secrets",
        str,
        "",
        "File with names and secrets of agents, as `hivemind agent add` writes it: clients that prove none of them are "
        "refused (407). Read again when it changes.",
        is_path=True,
        reaches_out=True,
    ),
    Option(
        "hivemind_upstream",
        str,
        "",
        "URL of the provider that requests straight to the proxy's own port go to, as with a base URL that names it. "
        "Default: by their path, to the host of the profile that knows it.",
        reaches_out=True,
    ),
    Option(
        "hivemind_max_concurrency",
        str,
        "",
        "At most so many requests at once on each key, all models together, unless a model proves to have limits of "
        "its own; empty: as many as the profiles allow.",
        reaches_out=True,
    ),
    Option(
        "hivemind_total_budget",
        str,
        "",
        "What all agents together may spend in this run: tokens (`500k`, `20M`) or dollars (`$5`). Empty: what the "
        "agents file says.",
        reaches_out=True,
    ),
    Option(
        "hivemind_agent_budget",
        str,
        "",
        "What each agent may spend in this run, tokens or dollars. Empty: what the agents file says.",
        reaches_out=True,
    ),
    Option(
        "hivemind_refuse_unpriced",
        bool,
        False,
        "Refuse calls that a budget in dollars pays for where the model has no known price, or the price of another "
        "model as a guess (docs/budgets.md).",
        reaches_out=True,
    ),
    Option(
        "hivemind_journal",
        str,
        "",
        "File (SQLite) that remembers every request, what was spent and what was learned, over restarts "
        "(docs/journal.md); `off` for none. Default: journal.db in your state folder.",
        is_path=True,
    ),
    Option(
        "hivemind_fresh",
        bool,
        False,
        "Start without the orders (pauses, caps, priorities, budgets) and the budgets per run of earlier runs on this "
        "port; what was learned stays.",
        settable=False,
        reaches_out=True,
    ),
    Option(
        "hivemind_journal_keep",
        str,
        JOURNAL_KEEP,
        "How much of the past the journal keeps, for example `7 days` or `90 days, 2 GB`; the oldest goes first.",
    ),
    Option(
        "hivemind_contexts",
        str,
        KEEP_CONTEXTS,
        "When conversations are kept beside the journal, so that they can be read and continued: `turn` after each "
        "request, `every:N` after so many, `idle` after 30 s of silence, `end` after an hour of it, `off` only where a "
        "budget stops one; each of them at the proxy's end as well.",
    ),
    Option(
        "hivemind_control",
        str,
        "",
        "Unix socket that tells `hivemind status` and its like what goes on; `off` for none. "
        "Default: PORT.sock in your runtime folder.",
        settable=False,  # the answer to that would come by the socket that it closes
        reaches_out=True,
    ),
    Option(
        "hivemind_log",
        str,
        "",
        "File to which every event is appended as a line of JSON (docs/events.md); `-` for standard output.",
        is_path=True,
    ),
    Option(
        "hivemind_notify",
        str,
        "",
        "How to call for help when something stops all agents (an account block, a budget, an outage of 5 minutes, a "
        "full disk), or when a context is nearly full: a command (no shell), which reads JSON on its standard input; "
        "or a file (mode 600) of Apprise's addresses, one a line. Default: the addresses in HIVEMIND_ALERTS.",
        may_hold_secrets=True,
        reaches_out=True,
    ),
    Option(
        "hivemind_context_warning",
        str,
        str(DEFAULT_WARNING),
        "Share of a model's context window from which on a conversation is warned of, in the log, to `hivemind_notify` "
        "and wherever agents are shown: `0.8` or `80%`; `0` for never.",
    ),
    Option(
        "hivemind_metrics_agents",
        str,
        "0",
        "So many agents, those that use most, have counters of their own in /metrics, all others share one. `0`: "
        "none, and names of agents, which may tell of people, stay out of it.",
    ),
    Option(
        "hivemind_capture",
        str,
        "",
        "File that every call is recorded into as it ends, without credentials: a flow file, for `mitmweb -r`, "
        "`hivemind capture show` and `hivemind replay`. It only grows. May be set and unset while the proxy runs.",
        is_path=True,
    ),
    Option(
        "hivemind_capture_content",
        bool,
        True,
        "Whether the words of requests and answers are recorded, too; false: only sizes, times and structure.",
    ),
    Option(
        "hivemind_redirect",
        Sequence[str],
        [],
        "Send a profile's host to another address: HOST=ADDRESS:PORT. SNI, certificate check and Host stay HOST's. "
        "May be given several times.",
        reaches_out=True,
    ),
    Option(
        "hivemind_reverse_profile",
        str,
        "",
        "Profile of the upstream in reverse mode, where its host names none and its paths would choose another.",
    ),
    Option(
        "hivemind_reverse_hosts",
        Sequence[str],
        [],
        "Name by which clients may call a reverse-mode proxy, or another one as their base URL, beside addresses, "
        "localhost, names of the local network, the upstream's and those of profiles. `*` stands for anything. May be "
        "given several times.",
        reaches_out=True,
    ),
    Option(
        "hivemind_lan_ports",
        Sequence[str],
        [],
        "Port of this machine's loopback that clients elsewhere may reach, where the proxy listens beyond loopback; "
        "those that profiles name may be reached anyway. May be given several times.",
        reaches_out=True,
    ),
    Option(
        "hivemind_keep",
        str,
        VIEW_KEEP,
        "How many finished flows, and how much of their bodies, stay in mitmweb and the console, for example "
        "`200 flows` or `500 flows, 1 GB`; `off` for all. What you marked or commented stays anyway.",
    ),
    Option(
        "hivemind_cluster",
        str,
        "",
        "URL of a Valkey or Redis server; all proxies that name the same one schedule as one "
        "(valkey://[USER@]HOST[:PORT][/DB], valkeys:// with TLS, unix:///PATH). Default: what the variable "
        f"{CLUSTER_VARIABLE} says; `off` for none. {PASSWORD_VARIABLE} holds the password.",
        settable=False,
        reaches_out=True,
    ),
    Option(
        "hivemind_cluster_name",
        str,
        "",
        f"Name of the cluster, where a server has several. Default: what the variable {CLUSTER_NAME_VARIABLE} says, "
        f"else `{DEFAULT_CLUSTER}`.",
        settable=False,
        reaches_out=True,
    ),
    Option(
        "hivemind_cluster_agents",
        str,
        JOINED,
        "Whether agents of one name at several machines of a cluster are one agent, with one share and one budget "
        f"(`{JOINED}`), or told apart (`{APART}`): then their names end with @HOST, while the agents file goes by the "
        "names without it.",
        settable=False,
        reaches_out=True,
    ),
    Option(
        "hivemind_cluster_host",
        str,
        "",
        "Name of this machine in its cluster. Default: its host name.",
        settable=False,
        reaches_out=True,
    ),
    Option(
        "hivemind_allow_lan",
        bool,
        False,
        "Listen beyond loopback without `proxyauth`: whoever reaches the port can spend your key.",
        reaches_out=True,
    ),
    Option(
        "hivemind_allow_clients",
        Sequence[str],
        [],
        "Network that clients may be in, beside this machine (10.0.0.0/8, fd00::/8, one address; several with commas); "
        "they may see the status page and /metrics, too. All others are refused before anything is read. "
        "May be given several times.",
        reaches_out=True,
    ),
)
