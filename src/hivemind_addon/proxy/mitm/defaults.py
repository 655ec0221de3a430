"""mitmproxy's own options, as a proxy for agents wants them: unless the user said otherwise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mitmproxy import ctx

WEB_COLUMNS = ["icon", "path", "status", "size", "time", "comment"]
"""Of mitmweb's list: the comment says why a flow is held; all model calls are POST over TLS."""


def set_defaults() -> bool:
    """Loopback, upstream connections only when a request goes, comments shown.

    True: the ports have to be bound anew. Scripts are loaded when mitmproxy has begun to bind them elsewhere.
    """
    is_moved = not ctx.options.listen_host and not said_by_user("listen_host")
    if is_moved:
        ctx.options.listen_host = "127.0.0.1"
    if not said_by_user("connection_strategy"):
        ctx.options.connection_strategy = "lazy"
    if "web_columns" in ctx.options and not said_by_user("web_columns"):
        ctx.options.web_columns = WEB_COLUMNS
    return is_moved and not ctx.master.addons.get("proxyserver").is_running


def said_by_user(name: str) -> bool:
    """Whether the user set an option, be it to its default: mitmproxy does not tell."""
    if any(argument.partition("=")[0] == name for argument in sys.argv):
        return True
    if name == "listen_host" and "--listen-host" in sys.argv:
        return True
    folder = Path(ctx.options.confdir).expanduser()
    files: Any = (folder / "config.yaml", folder / "config.yml")
    return any(
        line.startswith(f"{name}:") for file in files if file.is_file() for line in file.read_text().splitlines()
    )
