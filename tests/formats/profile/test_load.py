import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hivemind_addon.formats.base.document import read_yaml
from hivemind_addon.formats.base.resources import formats_folder, profiles_folder
from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.formats.profile import load as loading
from hivemind_addon.formats.profile.load import Claim, format_for, is_call, load_profiles, model_group, model_of
from hivemind_addon.formats.profile.model import InputCharge, OutputCharge, Profile, WebSocketUse
from hivemind_addon.kernel.values.ticket import Dimension, OutcomeKind


def load(folder: Path, **files: str):
    for name, text in files.items():
        (folder / f"{name.replace('_', '-')}.yaml").write_text(text, encoding="utf-8")
    return load_profiles(folder)


def error_of(folder: Path, **files: str) -> str:
    with pytest.raises(DocumentError) as caught:
        load(folder, **files)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    return line.replace(f"{folder}/", "").replace(f"{folder}", "FOLDER")


packaged = load_profiles(None)
anthropic, openai, compatible = (packaged.by_name[name] for name in ("anthropic", "openai", "openai-compatible"))


# The packaged profiles


def test_ollama_has_five_shapes_behind_one_address(subtests):
    cases = [
        ("/api/chat", "ollama"),
        ("/api/generate", "ollama"),
        ("/v1/chat/completions", "openai-chat"),
        ("/v1/completions", "openai-chat"),
        ("/v1/responses", "openai-responses"),
        ("/v1/messages", "anthropic"),
    ]
    for path, dialect in cases:
        with subtests.test(path=path, dialect=dialect):
            ollama = packaged.match_host("127.0.0.1", 11434)
            assert ollama is packaged.by_name["ollama"]
            assert is_call(ollama, "POST", path)
            assert format_for(ollama, path).name == dialect


def test_an_unknown_server_that_speaks_ollamas_format_is_recognised_by_its_path():
    assert packaged.for_path("/api/chat").name == "ollama"
    assert packaged.for_path("/v1/chat/completions").name == "openai-compatible"
    assert not is_call(packaged.by_name["ollama"], "POST", "/api/embed")
    assert not is_call(packaged.by_name["ollama"], "POST", "/api/pull")


def test_codex_with_a_login_has_a_host_of_its_own_of_which_only_turns_are_scheduled():
    codex = packaged.match_host("chatgpt.com", 443)
    assert codex is packaged.by_name["codex"]
    for path in ("/backend-api/codex/responses", "/backend-api/codex/responses/compact"):
        assert is_call(codex, "POST", path)
        assert format_for(codex, path).name == "openai-responses"
    assert not is_call(codex, "POST", "/backend-api/codex/models")
    assert not is_call(codex, "POST", "/v1/responses")
    assert codex.websocket is WebSocketUse.TURNS
    assert {packaged.by_name[name].websocket for name in ("ollama", "vllm", "azure")} == {WebSocketUse.REFUSE}
    assert codex.meters == ()
    assert codex.refusal.status == 503, "Codex gives up at a 429"


def test_the_packaged_profiles_are_named_by_their_files():
    files = {file.stem for file in profiles_folder().glob("*.yaml")}
    assert {profile.name for profile in packaged.by_name.values()} == files
    assert {"anthropic", "bedrock", "codex", "gemini", "ollama", "openai", "openai-compatible"} <= files


def test_what_a_start_reads_of_each_packaged_profile_is_what_it_says():
    assert packaged.claims.keys() == packaged.by_name.keys()
    for name, profile in packaged.by_name.items():
        assert packaged.claims[name] == Claim(profile.hosts, profile.paths, profile.reverse_paths), name
        assert profile.upstreams == (), name


def test_a_start_types_no_packaged_profile_and_a_host_its_own_only(monkeypatch):
    typed = []

    def convert(cls, document, file, **more):
        typed.append(file.stem)
        return Profile(name="made")

    monkeypatch.setattr(loading, "convert", convert)
    started = loading._packaged_profiles.__wrapped__(profiles_folder())
    assert started.match_host("provider.test", 443) is None
    assert typed == []
    assert started.match_host("api.groq.com", 443).name == "groq"
    assert typed == ["groq"]


def test_profiles_of_equal_files_are_equal(tmp_path):
    first = load(tmp_path, mine="extends: anthropic\nhosts: [a.example]")
    assert load(tmp_path) == first
    assert first != packaged
    assert first.capped(1) == first.capped(1) != first.capped(2)
    assert load(tmp_path, mine="extends: anthropic\nhosts: [a.example]\nkeep_alive_s: 7") != first


def test_only_posts_to_messages_are_model_calls_of_anthropic(subtests):
    cases = [
        ("POST", "/v1/messages", True),
        ("POST", "/v1/messages?beta=true", True),
        ("post", "/v1/messages", True),
        ("GET", "/v1/messages", False),
        ("HEAD", "/", False),
        ("POST", "/v1/messages/count_tokens", False),
        ("POST", "/v1/messages/batches", False),
        ("GET", "/v1/models", False),
        ("POST", "/api/event_logging/v2/batch", False),
        ("POST", "/api/claude_cli/bootstrap", False),
    ]
    for method, path, scheduled in cases:
        with subtests.test(method=method, path=path):
            assert is_call(anthropic, method, path) is scheduled


def test_chat_and_responses_are_model_calls_of_openai_each_in_its_dialect(subtests):
    cases = [
        ("/v1/chat/completions", True, "openai-chat"),
        ("/v1/responses", True, "openai-responses"),
        ("/v1/responses/compact", True, "openai-responses"),
        ("/v1/responses/input_tokens", False, "openai-chat"),
        ("/v1/models", False, "openai-chat"),
        ("/v1/batches", False, "openai-chat"),
    ]
    for path, scheduled, dialect in cases:
        with subtests.test(path=path, scheduled=scheduled):
            assert is_call(openai, "POST", path) is scheduled
            assert format_for(openai, path).name == dialect


def test_anthropic_charges_uncached_input_and_actual_output_and_openai_all_and_the_maximum():
    assert (anthropic.charge.input, anthropic.charge.output) == (InputCharge.UNCACHED, OutputCharge.ACTUAL)
    assert (openai.charge.input, openai.charge.output) == (InputCharge.ALL, OutputCharge.MAX_TOKENS)


def test_anthropic_meters_all_four_dimensions_and_knows_that_tokens_are_rounded():
    assert {m.dimension for m in anthropic.meters} == set(Dimension)
    assert {m.meter: m.granularity for m in anthropic.meters} == {
        "requests": 0,
        "input-tokens": 1000,
        "output-tokens": 1000,
        "tokens": 1000,
    }


def test_refusals_are_those_that_each_providers_clients_come_back_from():
    assert (anthropic.refusal.status, anthropic.refusal.error) == (429, "rate_limit_error")
    assert openai.refusal.status == 503


def test_the_compatible_profile_has_openais_rules_behind_its_own():
    assert compatible.hosts == ()
    assert compatible.outcomes[-len(openai.outcomes) :] == openai.outcomes
    assert len(compatible.outcomes) > len(openai.outcomes)
    assert compatible.meters == openai.meters


def first_match(profile, *, status, error="", message="", headers=None):
    """The rule that decides, read as its documentation says; the reading of the wire is tested there."""
    for rule in profile.outcomes:
        given_headers = headers or {}
        if (
            (not rule.status or status in rule.status)
            and (not rule.error or error in rule.error)
            and (not rule.message or re.search(rule.message, message, re.IGNORECASE))
            and all(re.search(p, given_headers.get(n, ""), re.IGNORECASE) for n, p in rule.headers.items())
        ):
            return rule.kind, rule.retry
    return None


HARD = (OutcomeKind.IGNORED, False)
OVERLOADED = (OutcomeKind.OVERLOADED, True)
THROTTLED = (OutcomeKind.THROTTLED, True)
FAILED = (OutcomeKind.FAILED, True)


def test_anthropics_answers_mean_what_its_documentation_says(subtests):
    cases = [
        ({"status": 429, "error": "enforced_spend_limit_reached"}, HARD),
        ({"status": 400, "message": "You have reached your specified API usage limits."}, HARD),
        ({"status": 400, "message": "You have reached your specified workspace API usage limits."}, HARD),
        ({"status": 429, "message": "Extra usage is required for long context requests."}, HARD),
        ({"status": 429, "headers": {"anthropic-ratelimit-unified-status": "allowed"}}, None),
        ({"status": 529, "headers": {"anthropic-ratelimit-unified-status": "rejected"}}, None),
        ({"status": 429, "message": "Number of concurrent connections has exceeded your rate limit."}, OVERLOADED),
        ({"status": 429, "error": "rate_limit_error", "message": "8,000 output tokens per minute"}, None),
        ({"status": 200, "error": "billing_error"}, HARD),
        ({"status": 200}, None),
        ({"status": 500}, None),
    ]
    for answer, meaning in cases:
        with subtests.test(answer=answer, meaning=meaning):
            assert first_match(anthropic, **answer) == meaning


def test_openais_answers_mean_what_its_documentation_says(subtests):
    cases = [
        ({"status": 429, "error": "insufficient_quota"}, HARD),
        ({"status": 429, "error": "project_spend_limit_exceeded"}, HARD),
        ({"status": 429, "error": "slow_down"}, OVERLOADED),
        ({"status": 503, "error": "server_is_overloaded"}, OVERLOADED),
        ({"status": 429, "message": "Resource Unavailable"}, OVERLOADED),
        ({"status": 429, "error": "rate_limit_exceeded", "message": "Please try again in 1.2s."}, None),
    ]
    for answer, meaning in cases:
        with subtests.test(answer=answer, meaning=meaning):
            assert first_match(openai, **answer) == meaning
            assert first_match(compatible, **answer) == meaning


def test_compatible_servers_answers_mean_what_was_seen_of_them(subtests):
    cases = [
        (
            {"status": 429, "message": "Rate limit of 50 per 86400s exceeded for UserByModelByDay. Please wait"},
            HARD,
        ),
        ({"status": 429, "message": "Quota exceeded: GenerateRequestsPerDayPerProject-FreeTier, limit: 50"}, HARD),
        ({"status": 429, "message": "Too many concurrent requests"}, OVERLOADED),
        ({"status": 429, "message": "Concurrency limit reached"}, OVERLOADED),
        ({"status": 429, "message": "Rate limit reached: 30 per 60s"}, None),
    ]
    for answer, meaning in cases:
        with subtests.test(answer=answer, meaning=meaning):
            assert first_match(compatible, **answer) == meaning


# Which profile


@pytest.mark.parametrize("host", ["api.anthropic.com", "API.Anthropic.COM", "api.anthropic.com."])
def test_a_host_is_matched_in_any_spelling(host):
    assert packaged.match_host(host, 443) is anthropic


def test_a_host_that_no_profile_names_is_nobodys(subtests):
    for host in ["anthropic.com", "evil-api.anthropic.com", "api.anthropic.com.evil.example", "", "*"]:
        with subtests.test(host=host):
            assert packaged.match_host(host, 443) is None


def test_exact_hosts_come_before_globs_and_ports_before_none(tmp_path):
    profiles = load(
        tmp_path,
        wide="hosts: ['*.example.com']",
        closer="hosts: ['*.eu.example.com']",
        exact="hosts: [a.eu.example.com, bücher.example]",
        port="hosts: ['a.eu.example.com:8443', '[::1]:9000']",
    )

    def name(host, port=443):
        found = profiles.match_host(host, port)
        return found and found.name

    assert name("b.example.com") == "wide"
    assert name("b.eu.example.com") == "closer"
    assert name("a.eu.example.com") == "exact"
    assert name("a.eu.example.com", 8443) == "port"
    assert name("xn--bcher-kva.example") == "exact"
    assert name("BÜCHER.example") == "exact"
    assert name("::1", 9000) == "port"
    assert name("::1", 9001) is None


def test_an_unknown_upstream_is_recognised_by_the_path_it_is_called_on(subtests):
    cases = [
        ("/v1/messages", "anthropic"),
        ("/v1/messages?beta=true", "anthropic"),
        ("/gateway/v1/messages", "anthropic"),
        ("/v1/chat/completions", "openai-compatible"),
        ("/openai/v1/chat/completions", "openai-compatible"),
        ("/v1/responses", "openai-compatible"),
        ("/", None),
        ("/v1/messages/count_tokens", None),
    ]
    for path, name in cases:
        with subtests.test(path=path, name=name):
            found = packaged.for_path(path)
            assert (found and found.name) == name
            assert found is None or is_call(found, "POST", path)


def test_a_users_reverse_path_counts_before_a_packaged_one_of_the_same_glob(tmp_path):
    profiles = load(tmp_path, mine="extends: anthropic\nhosts: []\nreverse_paths: ['*/v1/messages']")
    assert profiles.for_path("/v1/messages").name == "mine"


def test_an_extension_does_not_take_over_the_reverse_paths_of_what_it_extends(tmp_path):
    profiles = load(tmp_path, aaa="extends: anthropic\nhosts: [a.example]")
    assert profiles.for_path("/v1/messages").name == "anthropic"


def test_an_extension_to_all_paths_keeps_the_dialects_right(tmp_path, subtests):
    cases = [
        ("/anything/chat/completions?x=1", "openai-chat"),
        ("/anything/responses", "openai-responses"),
        ("/anything/messages", "anthropic"),
    ]
    for path, dialect in cases:
        for parent in ["openai", "openai-compatible", "anthropic"]:
            with subtests.test(path=path, dialect=dialect):
                profile = load(tmp_path, mine=f"extends: {parent}\nhosts: [a.example]\npaths: ['/*']").by_name["mine"]
                assert is_call(profile, "POST", path)
                assert format_for(profile, path).name == dialect
                assert not is_call(profile, "POST", "/v1/messages/count_tokens")


def test_versions_of_a_class_share_their_group_and_other_models_have_their_own():
    assert model_group(anthropic, "claude-opus-4-1-20250805") == model_group(anthropic, "claude-opus-4-6")
    assert model_group(anthropic, "claude-opus-5") == "claude-opus-5"
    assert model_group(openai, "gpt-5") == "gpt-5"


# Users' files


def test_an_extension_takes_all_and_replaces_what_it_names(tmp_path):
    mine = load(
        tmp_path, mine="extends: anthropic\nhosts: ['localhost:8000']\npatience: {default_s: 60}\nmeters: []"
    ).by_name["mine"]
    assert mine.hosts == ("localhost:8000",)
    assert mine.meters == ()
    assert mine.outcomes == anthropic.outcomes
    assert mine.patience.default_s == 60
    assert mine.patience.headers == anthropic.patience.headers
    assert mine.name == "mine"


def test_settings_below_a_key_merge_key_by_key_and_own_globs_come_first(tmp_path):
    mine = load(
        tmp_path,
        mine="extends: openai\nhosts: []\ncharge: {input: uncached}\nformats: {'*/x/responses': openai-chat}",
    ).by_name["mine"]
    assert mine.charge.input is InputCharge.UNCACHED
    assert mine.charge.output is openai.charge.output
    assert format_for(mine, "/x/responses").name == "openai-chat"
    assert format_for(mine, "/y/responses").name == "openai-responses"


def test_the_item_inherited_stands_for_the_items_of_the_extended_profile(tmp_path):
    mine = load(
        tmp_path,
        mine="extends: anthropic\nhosts: []\nsession_headers: [x-first, inherited, x-last]",
    ).by_name["mine"]
    assert mine.session_headers == ("x-first", *anthropic.session_headers, "x-last")


def test_a_file_of_a_packaged_name_replaces_that_profile(tmp_path):
    profiles = load(tmp_path, anthropic="hosts: [api.anthropic.com]\nmodel_groups: ['*']")
    assert profiles.match_host("api.anthropic.com", 443).model_groups == ("*",)
    assert profiles.by_name["anthropic"].outcomes == ()


def test_a_file_that_extends_its_own_name_changes_the_packaged_profile(tmp_path):
    profiles = load(tmp_path, anthropic="extends: anthropic\nretry: {max_failures: 3}")
    changed = profiles.match_host("api.anthropic.com", 443)
    assert changed.retry.max_failures == 3
    assert changed.outcomes == anthropic.outcomes
    assert profiles.for_path("/v1/messages") is changed


def test_an_extension_of_a_changed_profile_gets_the_change_and_a_packaged_one_does_not(tmp_path):
    profiles = load(
        tmp_path,
        openai="extends: openai\nretry: {max_failures: 3}",
        mine="extends: openai\nhosts: [a.example]",
    )
    assert profiles.by_name["mine"].retry.max_failures == 3
    assert profiles.by_name["openai-compatible"].retry.max_failures == Profile().retry.max_failures


def test_extensions_chain(tmp_path):
    profiles = load(
        tmp_path,
        one="extends: two\nhosts: [one.example]",
        two="extends: openai-compatible\nhosts: [two.example]\nkeep_alive_s: 7",
    )
    assert profiles.by_name["one"].keep_alive_s == 7
    assert profiles.by_name["one"].outcomes == compatible.outcomes


def test_files_end_in_yaml_or_yml_and_others_are_left_alone(tmp_path):
    (tmp_path / "short.yml").write_text("hosts: [s.example]")
    (tmp_path / "notes.txt").write_text("{{{")
    assert load(tmp_path).match_host("s.example", 1).name == "short"


def test_a_broken_file_is_one_line_that_names_it_and_a_cure(tmp_path, subtests):
    cases = [
        ("", "mine.yaml: it is empty; "),
        ("# nothing but a comment\n", "mine.yaml: it is empty; "),
        ("- a\n- b\n", "mine.yaml: expected a mapping of settings, got a list; "),
        ("hello", "mine.yaml: expected a mapping of settings, got a str; "),
        ("hosts: [a.example\nretry: {}\n", "mine.yaml: line 2, column "),
        ("hosts: []\n  x: y\n", "mine.yaml: line 2, column "),
        ("hosts: []\nhosts: [a.example]\n", "mine.yaml: line 2, column 1: the key hosts stands twice; "),
        ("retry: {max_failures: 1, max_failures: 2}\n", "mine.yaml: line 1, column 26: the key max_failures"),
        ("a: !!python/object/apply:os.system [ls]\n", "mine.yaml: line 1, column 4: "),
        ("keep_alive_s: 2026-13-45\n", "mine.yaml: "),
        ("a: &a [*a]\nb: {? [1, 2] : 3}\n", "mine.yaml: "),
        ("[" * 100_000, "mine.yaml: no YAML"),
        ("\x01", "mine.yaml: no YAML"),
        ("name: other\n", "mine.yaml: name: a profile is named by its file; rename mine.yaml instead"),
        ("extends: 3\n", "mine.yaml: extends: expected a profile's name; "),
        ("extends: antropic\n", "mine.yaml: extends: there is no profile 'antropic'; known: anthropic, azure, "),
        ("extends: mine\n", "mine.yaml: extends: mine extends itself; "),
        ("retry: {max_failurs: 1}\n", "mine.yaml: retry.max_failurs: unknown key; did you mean max_failures?"),
        ("extends: openai\nhosts: []\nretry: {max_failurs: 1}\n", "mine.yaml: retry.max_failurs: unknown key"),
        (
            "extends: openai\nhosts: []\nconcurrency: {initial: 5000}\n",
            "mine.yaml: concurrency.initial: 5000 is above maximum, 4096; ",
        ),
        ("extends: openai\nhosts: []\noutcomes: [inherited, 3]\n", "mine.yaml: outcomes[1]: expected a mapping, got 3"),
        ("outcomes: [inherited]\n", "mine.yaml: outcomes[0]: expected a mapping, got 'inherited'"),
        ("hosts: [api.openai.com]\n", "mine.yaml: hosts[0]: api.openai.com is claimed by "),
        ("hosts: [API.OpenAI.com.]\n", "mine.yaml: hosts[0]: API.OpenAI.com. is claimed by "),
        ("extends: anthropic\n", "mine.yaml: hosts[0]: api.anthropic.com is claimed by "),
    ]
    for text, said in cases:
        with subtests.test(text=text, said=said):
            line = error_of(tmp_path, mine=text)
            assert line.startswith(said)
            assert "; " in line


def test_a_circle_of_extensions_is_shown(tmp_path):
    line = error_of(tmp_path, one="extends: two", two="extends: three", three="extends: two")
    assert "extends: a circle: two.yaml -> three.yaml -> two.yaml" in line


def test_two_users_profiles_of_one_reverse_path_are_refused(tmp_path):
    line = error_of(tmp_path, one="reverse_paths: [/x]", two="reverse_paths: [/x]")
    assert line.startswith("two.yaml: reverse_paths[0]: /x is claimed by one.yaml as well; ")


def test_two_files_of_one_name_are_refused(tmp_path):
    (tmp_path / "mine.yml").write_text("hosts: []")
    assert error_of(tmp_path, mine="hosts: []").startswith("mine.yml: mine.yaml has the same name; ")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DocumentError, match="gone: no such folder; name a folder"):
        load_profiles(tmp_path / "gone")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "mine.yaml").mkdir()
    assert error_of(tmp_path).startswith("mine.yaml: cannot be read: ")


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\xfa")
    assert error_of(tmp_path).startswith("mine.yaml: no YAML: ")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60))
def test_any_file_is_a_profile_or_a_line(tmp_path, content):
    (tmp_path / "mine.yaml").write_bytes(content)
    try:
        said = " ".join(load_profiles(tmp_path).by_name)
    except DocumentError as error:
        said = str(error)
    assert "mine" in said
    assert len(said.splitlines()) == 1


def test_the_packaged_files_say_when_what_they_know_was_seen():
    """A comment with a year per file: facts about providers age."""
    for file in profiles_folder().glob("*.yaml"):
        assert re.search(r"#.*\b20\d\d\b", file.read_text(encoding="utf-8")), file.name


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/openai/deployments/gpt-5-eu/chat/completions?api-version=2026-01-01", "gpt-5-eu"),
        ("/gateway/openai/deployments/mini/responses", "mini"),
        ("/openai/v1/chat/completions", "said"),
        ("/openai/Deployments//gpt-5%2Deu/./chat/completions;v=1", "gpt-5-eu"),
    ],
)
def test_a_deployment_in_the_path_counts_before_the_model_that_the_body_names(path, model):
    assert model_of(compatible, path, "said") == model


def test_a_path_for_models_has_a_place_for_the_model(tmp_path):
    (tmp_path / "x.yaml").write_text("extends: openai-compatible\nhosts: [a.test]\nmodel_paths: [/models/*]")
    with pytest.raises(DocumentError, match=r"model_paths\[0\].*write \{model\} once"):
        load_profiles(tmp_path)


def test_what_is_packaged_says_nothing_twice():
    """Packaged files are read fast, by a reader that would not notice."""
    for file in (*profiles_folder().glob("*.yaml"), *formats_folder().glob("*.yaml")):
        assert read_yaml(file.read_bytes(), file), file
