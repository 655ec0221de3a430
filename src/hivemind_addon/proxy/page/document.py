"""The status page: one self-contained document, and the policy that lets a browser run nothing but it."""

import base64
import hashlib
from importlib.resources import files


def _part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """The text as a Content-Security-Policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE = _part("status.css")
_SCRIPT = _part("status.js")
DOCUMENT = _part("status.html").replace("/*style*/", _STYLE).replace("/*script*/", _SCRIPT).encode()
"""It fetches `/report.json` from where it came, and nothing else."""
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_source(_SCRIPT)}",
        f"style-src {_source(_STYLE)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
