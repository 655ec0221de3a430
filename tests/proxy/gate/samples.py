"""Flows and an intake with everything behind it, for tests of what is between mitmproxy and the scheduler."""

import json

from mitmproxy import http
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import tflow

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.proxy.gate.proxy import Proxy
from hivemind_addon.proxy.gate.settings import Settings
from hivemind_addon.proxy.run.compose import make_runtime


def make_proxy(folder=None, **changes):
    """Call it in a running loop. Its events are in `heard`."""
    heard = []
    runtime = make_runtime(observers=(heard.append,))
    proxy = Proxy(runtime=runtime, settings=Settings(profiles=load_profiles(folder), **changes))
    proxy.heard = heard
    return proxy


def make_flow(
    url="https://api.anthropic.com/v1/messages", *, method="POST", mode="regular", sni=None, content=None, **headers
):
    flow = tflow.tflow(resp=False)
    named = {name.replace("_", "-"): value for name, value in ({"x_api_key": "sk-1"} | headers).items()}
    if content is None:
        content = json.dumps(
            {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
        ).encode()
    flow.request = http.Request.make(method, url, content, named)
    flow.client_conn.sni = sni
    flow.client_conn.proxy_mode = ProxyMode.parse(mode)
    return flow
