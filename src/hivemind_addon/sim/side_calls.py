"""What Google's and AWS's services are asked beside model calls: lists of models, counts of tokens, and the calls with
which Gemini CLI logs in. Pure. None of it counts against a limit.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from hivemind_addon.formats.base.document import read_yaml
from hivemind_addon.sim.dialect.google import model
from hivemind_addon.sim.request import input_tokens

_KNOWN = Path(__file__).with_name("side_calls.yaml")
_ANSWERS: Mapping[str, Mapping[str, Mapping[str, object]]] = read_yaml(_KNOWN.read_bytes(), _KNOWN)
_COUNT = re.compile(r"/v1.*/(?:models|tunedModels)/[^/]+:countTokens")
_MODEL = re.compile(r"/v1(?:alpha|beta)/models(?:/([^/:]+))?")
_BEDROCK_COUNT = re.compile(r"/model/[^/]+/count-tokens")
_INTERNAL = re.compile(r"/v1internal[:/](\w+)(?:/.*)?")


def beside(method: str, path: str, body: bytes | bytearray) -> Mapping[str, object] | None:
    """What such a request is answered with; None: it is none."""
    if path in _ANSWERS["login"]:
        return _ANSWERS["login"][path]
    if method == "GET" and (found := _MODEL.fullmatch(path)):
        return model(found[1]) if found[1] else {"models": [model("sim-1")]}
    if method == "POST" and path.endswith("/count-tokens:rawPredict"):
        return {"input_tokens": input_tokens(body)}
    if method == "POST" and (_COUNT.fullmatch(path) or path == "/v1internal:countTokens"):
        return {"totalTokens": input_tokens(body)}
    if method == "POST" and _BEDROCK_COUNT.fullmatch(path):
        return {"inputTokens": input_tokens(body)}
    if found := _INTERNAL.fullmatch(path):
        return _ANSWERS["code_assist"].get("onboardUser" if found[1] == "operations" else found[1])
    return None
