"""Addons see the same hooks, in the same order, as without us: hook by hook, status by status, body by body."""

import json
import re
import ssl

import h2.exceptions
import httpx
import pytest

from tests.e2e.origin import running_origin
from tests.e2e.proxy import PROBE, ROOT, body, for_host, profiles, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hooks")]

ADDON = ROOT / "hivemind_addon"
SEEN = PROBE.with_name("hooks_seen.py")
OTHER_MANAGER = """
from mitmproxy import addonmanager, ctx

class Manager(addonmanager.AddonManager):
    pass

def load(loader):
    ctx.master.addons.__class__ = Manager
"""
"""A script that makes mitmproxy another than we know."""
HOOKS = ("requestheaders", "request", "responseheaders", "response")
CASES = [
    "",
    "stream",
    "sleep",
    "time out",
    "sleep, raise",
    "sleep, halt",
    *(f"raise in {hook}" for hook in HOOKS),
    *(f"halt in {hook}" for hook in HOOKS),
    *(f"answer in {hook}" for hook in HOOKS),
    *(f"kill in {hook}" for hook in HOOKS),
    *(f"intercept in {hook}" for hook in HOOKS),
    *(f"intercept, kill in {hook}" for hook in HOOKS),
    "change the request",
    "change the answer in responseheaders",
    "change the answer in response",
    *("set", "", "unset", ""),
    *("no function", "", "a function", ""),
    *("add", "", "remove", ""),
    *("nest", "", "unnest", ""),
    *("mitmproxy's own", "", "mitmproxy's own again", ""),
    *("coroutine", "", "a function", ""),
]

MAY_HANG = "kill in requestheaders"
"""mitmproxy by itself may leave the client's connection open then: it cancels the connection's handler, and one that
waits for its lock at that moment, with the request's body in hand, ends without closing anything."""
HANGS_S = 3.0
"""After this time a client gives up whose connection nobody may close."""


def asked(proxy, origin, version, *, may_hang):
    """What the client and the origin got, case by case, over one connection."""
    got = []
    with proxy.client(http2=version == "h2") as client:
        for number, case in enumerate(CASES):
            before = len(origin.arrived)
            headers = {"x-api-key": "k", "content-type": "application/json", "x-case": case, "x-number": str(number)}
            content = body(stream=case == "stream")
            try:
                patience = {"timeout": HANGS_S} if may_hang and case == MAY_HANG else {}
                answer = client.post(f"{origin.url}/v1/messages", content=content, headers=headers, **patience)
                result = answer.status_code, answer.headers.get("x-changed"), answer.content.decode()
            except (httpx.HTTPError, h2.exceptions.H2Error) as error:
                result = (type(error).__name__,)
            arrived = [(one.headers.get("x-changed"), bytes(one.body).decode()) for one in origin.arrived[before:]]
            got.append((case, result, arrived))
    return got


def addons_part(block):
    """What is logged of an addon's fault, without the places that are mitmproxy's or ours."""
    lines = re.sub(r"object at \w+", "object", block).splitlines()
    places = [line for line in lines if line.startswith("  File ")]
    return [lines[0], lines[-1], [place for place in places if SEEN.name in place]]


def outcome(folder, scripts, origin, settings, version, *, may_hang=True):
    """What everybody has seen of all cases, and what mitmproxy has logged of addons."""
    with running(folder, *settings, "--ssl-insecure", "--listen-host", "127.0.0.1", scripts=scripts) as proxy:
        got = asked(proxy, origin, version, may_hang=may_hang)
        proxy.stop()
        told = [
            addons_part(block) for block in re.findall(r"Addon error: (?:.*\n)+?\S*(?:Error|Exception): .*", proxy.log)
        ]
        taken = "in a way of its own" not in proxy.log
    seen = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    first = next(number for number, one in enumerate(seen) if one[0] != "connect")
    # A client may connect anew after a broken answer, sooner or later.
    seen = seen[:first] + [one for one in seen if one[0] != "connect"]
    return got, seen, told, taken


@pytest.mark.parametrize("version", ["h1", "h2"])
def test_addons_see_what_they_see_without_us(tmp_path, authority, version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    other = tmp_path / "other_manager.py"
    other.write_text(OTHER_MANAGER)
    with running_origin(context) as origin:
        origin.open()
        ours = profiles(tmp_path, sim=for_host(origin.port))
        bare = outcome(tmp_path / "bare", [SEEN], origin, [], version)
        direct = outcome(tmp_path / "direct", [ADDON, SEEN], origin, ours, version, may_hang=False)
        fallen_back = outcome(tmp_path / "fallen back", [other, ADDON, SEEN], origin, ours, version)
    assert direct[3]
    assert not fallen_back[3]
    late = CASES.index(MAY_HANG)
    assert direct[0][late] == (MAY_HANG, ("RemoteProtocolError",), [])
    for one in (bare, fallen_back):
        assert one[0][late] in (direct[0][late], (MAY_HANG, ("ReadTimeout",), []))
        one[0][late] = direct[0][late]
    for one in (direct, fallen_back):
        assert one[0] == bare[0]
        assert one[1] == bare[1]
        assert one[2] == bare[2]
