"""What makes a client trust the proxy, and what to say when it does not."""

from pathlib import Path

CERTIFICATE = "mitmproxy-ca-cert.pem"
"""The CA's certificate in mitmproxy's folder: what a client needs."""
KEY = "mitmproxy-ca.pem"
"""The CA's certificate with its private key: no client's business."""


def ca_certificate(confdir: Path) -> Path:
    """The CA's certificate, which mitmproxy makes at its first start."""
    return confdir.expanduser() / CERTIFICATE


def cure_of_distrust(host: str, confdir: Path) -> str:
    """What to do when a client refuses the certificate that the proxy shows for a host; one line."""
    return (
        f"it does not trust the proxy's certificate for {host}: start it with `hivemind exec -- COMMAND`, or set "
        f"NODE_EXTRA_CA_CERTS (Node, Claude Code) or SSL_CERT_FILE (Python, Go, Codex) to {ca_certificate(confdir)}"
    )
