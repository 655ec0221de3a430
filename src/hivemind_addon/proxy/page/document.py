"""The page as files: one document for all views, its scripts and styles, and the policy that lets a browser run these.

`uPlot` draws the charts. It is shipped as its authors made it; `uPlot.txt` says where it comes from.
"""

import secrets
from importlib.resources import files

_MARK = b"@nonce@"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


def _read(name: str) -> bytes:
    return (files(__package__) / name).read_bytes()


_DOCUMENT = _read("page.html")
ASSETS: dict[str, tuple[str, bytes]] = {
    name: (_TYPES[name[name.rindex(".") :]], _read(name))
    for name in (
        "page.css",
        "page.js",
        "elements.js",
        "words.js",
        "proxy.js",
        "now.js",
        "steering.js",
        "charts.js",
        "history.js",
        "request.js",
        "fleets.js",
        "uPlot.iife.min.js",
        "uPlot.min.css",
    )
}
"""Name below `/page/` → content type and content. They load each other, and nothing else."""


def make_document() -> tuple[bytes, str]:
    """The document and its Content-Security-Policy: only what bears this answer's own nonce is run."""
    nonce = secrets.token_urlsafe(16)
    return _DOCUMENT.replace(_MARK, nonce.encode()), _policy(f"'nonce-{nonce}'")


def _policy(source: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {source}",
            f"style-src {source}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


STRICTEST_POLICY = _policy("'none'")
"""Of everything that is no document."""
