"""Whether a request that AWS's Signature Version 4 signs arrived as it was signed, and in time. Pure.

The simulated provider knows every key id, and the secret of each is SECRET_KEY.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from hivemind_addon.sim.faults import ErrorStatus

SECRET_KEY = "sim-secret"  # noqa: S105 - there is nothing to keep
VALID = timedelta(minutes=5)
"""Before and after the instant that a request names."""
_ALGORITHM = "AWS4-HMAC-SHA256"
_AUTHORIZATION = re.compile(
    rf"{_ALGORITHM} Credential=(?P<key>[^/,\s]+)/"
    r"(?P<scope>(?P<day>\d{8})/(?P<region>[^/,]+)/(?P<service>[^/,]+)/aws4_request),"
    r"\s*SignedHeaders=(?P<names>[^,]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
_TIME = "%Y%m%dT%H%M%SZ"


def key_id(authorization: str) -> str | None:
    """Who signed it; None: nobody did."""
    found = _AUTHORIZATION.fullmatch(authorization.strip())
    return found["key"] if found else None


def refusal(
    *, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes | bytearray, wall_now: float
) -> ErrorStatus | None:
    """What is wrong with a signed request; None: nothing, or it is not signed.

    `path`, `query`: as they arrived. `headers`: lower-case names, `host` among them. `wall_now`: seconds since the
    epoch.
    """
    authorization = headers.get("authorization", "").strip()
    if not authorization.startswith(_ALGORITHM):
        return None
    found = _AUTHORIZATION.fullmatch(authorization)
    if found is None:
        return _wrong("IncompleteSignatureException", "The Authorization header is not complete.")
    names = found["names"].split(";")
    if missing := [name for name in names if name not in headers]:
        return _wrong("InvalidSignatureException", f"The signed header {missing[0]} did not arrive.")
    try:
        signed_at = datetime.strptime(headers.get("x-amz-date", ""), _TIME).replace(tzinfo=UTC)
    except ValueError:
        return _wrong("IncompleteSignatureException", "x-amz-date is missing or no instant.")
    if said := _out_of_time(signed_at, datetime.fromtimestamp(wall_now, UTC)):
        return _wrong("InvalidSignatureException", said)
    digest = hashlib.sha256(body).hexdigest()
    canonical = "\n".join(
        (
            method,
            quote(path, safe="/-_.~"),
            "&".join(sorted(query.split("&"))),
            *(f"{name}:{' '.join(headers[name].split())}" for name in names),
            "",
            found["names"],
            digest,
        )
    )
    to_sign = "\n".join(
        (_ALGORITHM, headers["x-amz-date"], found["scope"], hashlib.sha256(canonical.encode()).hexdigest())
    )
    key = f"AWS4{SECRET_KEY}".encode()
    for part in (found["day"], found["region"], found["service"], "aws4_request", to_sign):
        key = hmac.digest(key, part.encode(), "sha256")
    if headers.get("x-amz-content-sha256", digest) == digest and hmac.compare_digest(key.hex(), found["signature"]):
        return None
    return _wrong(
        "InvalidSignatureException",
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access "
        "Key and signing method. Consult the service documentation for details.",
    )


def _out_of_time(signed_at: datetime, now: datetime) -> str | None:
    if signed_at < now - VALID:
        return (
            f"Signature expired: {signed_at:{_TIME}} is now earlier than {now - VALID:{_TIME}} ({now:{_TIME}} - 5 min.)"
        )
    if signed_at > now + VALID:
        return (
            f"Signature not yet current: {signed_at:{_TIME}} is still later than {now + VALID:{_TIME}} "
            f"({now:{_TIME}} + 5 min.)"
        )
    return None


def _wrong(name: str, message: str) -> ErrorStatus:
    return ErrorStatus(403, error=name, message=message)
