"""Which paths the simulated provider serves, and what they say of a request. Pure.

/v1/messages, /v1/chat/completions, /v1/responses      also below other prefixes, as gateways have them
/openai/deployments/{model}/chat/completions           Azure's
/api/chat                                              Ollama
/v1beta/models/{model}:generateContent                 Gemini; `:streamGenerateContent`, with and without `alt=sse`
/v1internal:generateContent                            Code Assist, likewise
/v1/projects/…/publishers/google/models/{model}:…      Vertex; of `publishers/anthropic`, `rawPredict` and
                                                       `streamRawPredict`
"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote

from hivemind_addon.sim.dialect import SimDialect


@dataclass(frozen=True, slots=True)
class SimTarget:
    """Where a model call goes."""

    dialect: SimDialect
    model: str | None = None
    """None: the body names it."""
    stream: bool | None = None
    """None: the body says it."""
    key: str | None = None
    """API key of the query."""


_MODEL = r"(?P<model>[^/:]+)"
_GEMINI = re.compile(
    rf"/v1(?:alpha|beta|beta1)?/(?:projects/[^/]+/locations/[^/]+/)?(?:publishers/google/)?(?:tuned)?[mM]odels/{_MODEL}"
    r":(?P<stream>generateContent|streamGenerateContent)"
)
_CODE_ASSIST = re.compile(r"/v1internal:(?P<stream>generateContent|streamGenerateContent)")
_VERTEX_MESSAGES = re.compile(
    rf"/v1(?:beta1)?/projects/[^/]+/locations/[^/]+/publishers/anthropic/models/(?!count-tokens:){_MODEL}"
    r":(?P<stream>rawPredict|streamRawPredict)"
)
_AZURE = re.compile(r"/openai/deployments/(?P<model>[^/]+)/chat/completions")
_BEDROCK = re.compile(r"/model/(?P<model>[^/]+)/(?P<asked>invoke|invoke-with-response-stream|converse|converse-stream)")
_ENDINGS = {
    "/chat/completions": SimDialect.CHAT,
    "/v1/messages": SimDialect.MESSAGES,
    "/responses": SimDialect.RESPONSES,
    "/api/chat": SimDialect.OLLAMA,
    "/v2/chat": SimDialect.COHERE,
}


def target_of(path: str, query: str) -> SimTarget | None:
    """What a POST to this raw path asks; None: it is no model call."""
    for ending, dialect in _ENDINGS.items():
        if path.endswith(ending):
            azure = _AZURE.fullmatch(path)
            return SimTarget(dialect, unquote(azure["model"]) if azure else None)
    if found := _BEDROCK.fullmatch(path):
        dialect = SimDialect.CONVERSE if found["asked"].startswith("converse") else SimDialect.INVOKE
        return SimTarget(dialect, unquote(found["model"]), found["asked"].endswith("stream"))
    asked = parse_qs(query)
    key = asked.get("key", [None])[0]
    path = path.replace("%3A", ":")
    if found := _VERTEX_MESSAGES.fullmatch(path):
        return SimTarget(SimDialect.VERTEX_MESSAGES, unquote(found["model"]), found["stream"] == "streamRawPredict")
    if found := _GEMINI.fullmatch(path):
        streams = found["stream"] == "streamGenerateContent"
        array = streams and asked.get("alt") != ["sse"]
        dialect = SimDialect.GEMINI_ARRAY if array else SimDialect.GEMINI
        return SimTarget(dialect, unquote(found["model"]), streams, key)
    if found := _CODE_ASSIST.fullmatch(path):
        return SimTarget(SimDialect.CODE_ASSIST, stream=found["stream"] == "streamGenerateContent")
    return None
