"""What only the parts of a request tell; the rest is in tests/proxy/gate/test_intake.py, with the ticket that is made of it."""

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.description import PlainRequest, describe_request
from hivemind_addon.formats.wire.estimate import Estimator
from hivemind_addon.formats.wire.tokenizer import Tokenizer


def test_patience_is_announced_or_known_of_the_client():
    profile = load_profiles(None).by_name["openai"]
    name = profile.patience.headers[0]
    known_s = profile.patience.clients["codex*"]
    for headers, patience_s in (
        ({name: "77", "user-agent": "codex_cli"}, 77),
        ({"user-agent": "codex_cli"}, known_s),
        ({name: "soon", "user-agent": "codex_cli"}, known_s),
        ({name: "-1"}, None),
        ({name: "1e9"}, None),
    ):
        request = PlainRequest("https", "api.openai.com", 443, "/v1/responses", headers, b"{}")
        told = describe_request(profile, request, Estimator(Tokenizer()), user="", peer="")
        assert told.requester.known_patience_s == patience_s, headers
