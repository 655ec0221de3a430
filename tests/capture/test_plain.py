from hivemind_addon.proxy.capture.redact import PlainHeaders
from hivemind_addon.proxy.profile.load import load_profiles

PROFILES = load_profiles(None).by_name.values()


def test_only_what_is_known_to_hold_no_secret_is_written():
    cases = (
        ("anthropic-version", b"v"),
        ("x-claude-code-session-id", b"v"),
        ("x-stainless-timeout", b"v"),
        ("authorization", None),
        ("x-api-key", None),
        ("cookie", None),
        ("openai-organization", None),
        ("x-of-nobody-knows-what", None),
    )
    assert [(name, written) for name, written in cases if PlainHeaders(PROFILES).written(name, b"v") != written] == []


def test_of_a_header_that_holds_an_object_only_the_texts_are_written_that_a_profile_reads():
    plain = PlainHeaders(PROFILES)
    told = b'{"session_id": "s-1", "installation_id": "secret", "thread_id": 7}'
    assert plain.written("x-codex-turn-metadata", told) == b'{"session_id":"s-1"}'
    assert plain.written("x-codex-turn-metadata", b"no JSON") == b"{}"
    assert PlainHeaders(()).written("x-codex-turn-metadata", told) is None
