"""mitmweb's list of flows, so that our comments can be read in it.

mitmweb gives comments 150 pixels and the URL all the rest, and has no option for that. So its page gets one more style,
where mitmweb's server is a tornado application as 12.2.0 to 12.2.3 have it: a handler before its own for the same page.
Without it the comments are there all the same, cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mitmproxy import ctx

from hivemind_addon.proxy.record.history import in_columns

if TYPE_CHECKING:
    from collections.abc import Callable

_FONT = "12px/23px Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_TITLES = f"{in_columns('Agent', 'State', 'Start')}Limit or use"
STYLE = f"""<style>
.flow-table .col-comment {{ width: 67%; }}
.flow-table td.col-comment {{ text-align: left; vertical-align: middle; font: {_FONT}; }}
.flow-table tr.intercepted:not(.has-response) td.col-comment {{ color: #a85400; }}
.flow-table th.col-comment {{ font-size: 0; padding-left: 5px; white-space: nowrap; overflow: hidden; }}
.flow-table th.col-comment::before {{ font: {_FONT}; content: "{_TITLES}"; }}
</style>
"""
"""The page's Content-Security-Policy allows styles in it."""
_END_OF_HEAD = b"</head>"
_IS_WIDE = "hivemind_wide_comments"
"""The attribute of mitmweb's server that says that it has our handler: a script may be loaded again."""


def widen_comments() -> None:
    """Have mitmweb's page show comments in columns; nothing where its server is not as we know it, or in no mitmweb."""
    app = getattr(ctx.master, "app", None)
    if app is None or hasattr(app, _IS_WIDE):
        return
    try:
        from mitmproxy.tools.web.app import IndexHandler  # noqa: PLC0415 - mitmdump needs no web server

        add_handlers: Callable[[str, list[Any]], None] = app.add_handlers
        render = IndexHandler.render_string
    except (ImportError, AttributeError):
        return

    class _WidePage(IndexHandler):
        """mitmweb's own page, and the style."""

        def render_string(self, template_name: str, **values: Any) -> bytes:
            page: bytes = render(self, template_name, **values)
            return page.replace(_END_OF_HEAD, STYLE.encode() + _END_OF_HEAD, 1)

    add_handlers(".*", [("/", _WidePage)])
    setattr(app, _IS_WIDE, True)
