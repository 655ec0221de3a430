"""Certificates for a simulated provider: an authority of its own, made anew for each run."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = timedelta(days=1)
_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files."""

    authority: Path
    """What clients trust."""
    certificate: Path
    key: Path


def write_certificates(folder: Path, host: str, now: datetime, *others: str) -> Certificates:
    """Write an authority's certificate, and one for `host` and `others` with its key. Valid for a day around `now`."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("hivemind simulated authority")
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name(host), authority_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in (host, *others)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    files = Certificates(folder / "authority.pem", folder / "provider.pem", folder / "provider-key.pem")
    pem = serialization.Encoding.PEM
    files.authority.write_bytes(authority.public_bytes(pem))
    files.certificate.write_bytes(certificate.public_bytes(pem))
    files.key.touch(mode=0o600)
    files.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    return files


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
