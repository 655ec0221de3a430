"""What Google's and AWS's services are asked beside model calls: lists of models, counts of tokens, and the calls with
which Gemini CLI logs in. Pure. None of it counts against a limit.
"""

import re
from collections.abc import Mapping

from hivemind_addon.sim.dialect.google import model
from hivemind_addon.sim.request import input_tokens

_PROJECT = "sim-project"
_TIER = {
    "id": "standard-tier",
    "name": "Simulated",
    "description": "",
    "userDefinedCloudaicompanionProject": False,
    "isDefault": True,
}
_CODE_ASSIST: Mapping[str, Mapping[str, object]] = {
    "loadCodeAssist": {"currentTier": _TIER, "allowedTiers": [_TIER], "cloudaicompanionProject": _PROJECT},
    "onboardUser": {
        "name": "operations/sim",
        "done": True,
        "response": {"cloudaicompanionProject": {"id": _PROJECT, "name": _PROJECT}},
    },
    "retrieveUserQuota": {"buckets": []},
    "fetchAdminControls": {},
    "listExperiments": {"experimentIds": [], "flags": []},
    "recordCodeAssistMetrics": {},
    "getCodeAssistGlobalUserSetting": {"cloudaicompanionProject": _PROJECT, "freeTierDataCollectionOptin": False},
    "setCodeAssistGlobalUserSetting": {"cloudaicompanionProject": _PROJECT, "freeTierDataCollectionOptin": False},
}
_LOGIN: Mapping[str, Mapping[str, object]] = {
    "/token": {"access_token": "sk-sim-google", "expires_in": 3599, "token_type": "Bearer", "scope": ""},
    "/tokeninfo": {"expires_in": 3599, "scope": "", "email": "sim@example.invalid"},
    "/oauth2/v2/userinfo": {"id": "1", "email": "sim@example.invalid", "verified_email": True},
}
_COUNT = re.compile(r"/v1.*/(?:models|tunedModels)/[^/]+:countTokens")
_MODEL = re.compile(r"/v1(?:alpha|beta)/models(?:/([^/:]+))?")
_BEDROCK_COUNT = re.compile(r"/model/[^/]+/count-tokens")
_INTERNAL = re.compile(r"/v1internal[:/](\w+)(?:/.*)?")


def beside(method: str, path: str, body: bytes | bytearray) -> Mapping[str, object] | None:
    """What such a request is answered with; None: it is none."""
    if path in _LOGIN:
        return _LOGIN[path]
    if method == "GET" and (found := _MODEL.fullmatch(path)):
        return model(found[1]) if found[1] else {"models": [model("sim-1")]}
    if method == "POST" and path.endswith("/count-tokens:rawPredict"):
        return {"input_tokens": input_tokens(body)}
    if method == "POST" and (_COUNT.fullmatch(path) or path == "/v1internal:countTokens"):
        return {"totalTokens": input_tokens(body)}
    if method == "POST" and _BEDROCK_COUNT.fullmatch(path):
        return {"inputTokens": input_tokens(body)}
    if found := _INTERNAL.fullmatch(path):
        return _CODE_ASSIST["onboardUser"] if found[1] == "operations" else _CODE_ASSIST.get(found[1])
    return None
