"""Certificates for a simulated provider: an authority of its own, made anew for each run."""

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from mitmproxy.certs import create_ca, dummy_cert

_KEY_BITS = 2048
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files."""

    authority: Path
    """What clients trust."""
    certificate: Path
    key: Path


def write_certificates(folder: Path, *hosts: str) -> Certificates:
    """Write an authority's certificate, and one certificate for these hosts with its key."""
    key, authority = create_ca("hivemind", "hivemind simulated authority", _KEY_BITS)
    certificate = dummy_cert(key, authority, hosts[0], [x509.DNSName(host) for host in hosts])
    files = Certificates(folder / "authority.pem", folder / "provider.pem", folder / "provider-key.pem")
    files.authority.write_bytes(authority.public_bytes(_PEM))
    files.certificate.write_bytes(certificate.to_pem())
    files.key.touch(mode=0o600)
    files.key.write_bytes(
        key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    return files
