"""A client of AWS's, by hand: signs requests and takes streams apart."""

import hashlib
import hmac
import struct
import zlib
from datetime import UTC, datetime
from urllib.parse import quote

from hivemind_addon.sim.sigv4 import SECRET_KEY


def signed(path: str, body: bytes, *, host: str, at: datetime | None = None, key_id: str = "AKIASIM") -> dict[str, str]:
    """The headers of a signed POST to a raw path without a query; `at`: when it is signed, else now."""
    instant = f"{at or datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    scope = f"{instant[:8]}/eu-west-1/bedrock/aws4_request"
    headers = {"content-type": "application/json", "host": host, "x-amz-date": instant}
    names = ";".join(headers)
    canonical = ["POST", quote(path, safe="/"), "", *(f"{name}:{value}" for name, value in headers.items()), "", names]
    digest = hashlib.sha256("\n".join([*canonical, hashlib.sha256(body).hexdigest()]).encode()).hexdigest()
    key = f"AWS4{SECRET_KEY}".encode()
    for part in [*scope.split("/"), f"AWS4-HMAC-SHA256\n{instant}\n{scope}\n{digest}"]:
        key = hmac.digest(key, part.encode(), "sha256")
    said = f"AWS4-HMAC-SHA256 Credential={key_id}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return {**headers, "authorization": said}


def messages_of(data: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Headers and payload of each message of a stream; its checksums are checked."""
    found = []
    while data:
        total, head, sum_ = struct.unpack_from(">III", data)
        assert sum_ == zlib.crc32(data[:8])
        assert struct.unpack_from(">I", data, total - 4)[0] == zlib.crc32(data[: total - 4])
        headers, at = {}, 12
        while at < 12 + head:
            name = data[at + 1 : at + 1 + data[at]].decode()
            at += 1 + data[at]
            kind, size = struct.unpack_from(">BH", data, at)
            assert kind == 7
            headers[name] = data[at + 3 : at + 3 + size].decode()
            at += 3 + size
        found.append((headers, data[at : total - 4]))
        data = data[total:]
    return found
