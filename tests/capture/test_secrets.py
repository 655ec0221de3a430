import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.proxy.capture.secrets import Redactor
from tests.cpu_time import least_cpu_s

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def word(least, most=40, alphabet=LETTERS):
    return st.text(alphabet, min_size=least, max_size=most)


SECRETS = st.one_of(
    st.builds("sk-ant-api03-{}".format, word(20)),
    st.builds("sk-proj-{}".format, word(20)),
    st.builds("ghp_{}".format, word(36, 36)),
    st.builds("github_pat_{}".format, word(30)),
    st.builds("AKIA{}".format, word(16, 16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
    st.builds("xoxb-{}-{}".format, word(12), word(12)),
    st.builds("eyJ{}.eyJ{}.{}".format, word(20), word(20), word(20)),
    st.builds("AIza{}".format, word(35, 35)),
    st.builds("{}@{}.com".format, word(3, 12), word(3, 12)),
)
SHELLS = st.sampled_from(
    [
        "{}",
        "export KEY={}",
        '"{}"',
        "({})",
        "key: {}, and so on",
        "line\n{}\nline",
        "curl -H 'x-api-key: {}' https://x.test",
        "é {} ü",
    ]
)


@given(SECRETS, SHELLS)
def test_what_looks_like_a_secret_is_found_in_any_shell(secret, shell):
    text = json.dumps({"content": shell.format(secret)}).encode()
    cleaned = Redactor("ab12").clean(text)
    assert secret.encode() not in cleaned
    assert json.loads(cleaned)


def test_secrets_with_something_before_them():
    cases = (
        ('{"authorization": "Bearer abcdefgh12345678"}', "abcdefgh12345678"),
        ("authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
        ("https://ann:hunter2@git.test/repo.git", "hunter2"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI"),
        ('{"env": "DATABASE_PASSWORD=\\"correct-horse\\""}', "correct-horse"),
        ('{"user_id": "user_' + "a1" * 32 + '_account_01234567-89ab-cdef-0123-456789abcdef_session_s"}', "a1a1a1"),
        ('{"user_id": "user_' + "a1" * 32 + '_account_01234567-89ab-cdef-0123-456789abcdef_session_s"}', "89ab-cdef"),
        ('{"user_id": "{\\"device_id\\":\\"d0d0d0d0d0\\",\\"account_uuid\\":\\"beefbeefbeef\\"}"}', "beefbeef"),
        ("-----BEGIN RSA PRIVATE KEY-----\\nMIIEow\\n-----END RSA PRIVATE KEY-----", "MIIEow"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz", "b3BlbnNz"),
    )
    assert [(text, secret) for text, secret in cases if not (secret not in Redactor("ab12").clean_text(text))] == []


def test_prose_and_code_stay_as_they_are():
    text = (
        "def task_management_system(self): return 'risk-assessment-of-everything'  # see user_name, token_count\n"
        "@pytest.fixture\nasync def eyJ(): ...  # 3 @ 4, a basic understanding, disk-management-system-for-all\n"
        "https://example.test:8080/path@2x max_tokens=4096"
    )
    assert Redactor("ab12").clean_text(text) == text


def test_the_same_secret_has_the_same_placeholder_and_another_one_another():
    redactor = Redactor("ab12")
    one, two = "sk-ant-" + "a" * 20, "sk-ant-" + "b" * 20
    first, second, third = redactor.clean_text(f"{one} {two} {one}").split()
    assert first == third != second
    assert first == "redacted-ab12-1"


def test_what_is_cleaned_twice_is_not_changed_again():
    redactor = Redactor("ab12")
    once = redactor.clean_text("API_KEY=sk-ant-aaaaaaaaaaaaaaaaaaaaaaaa and Bearer abcdefgh12345678")
    assert redactor.clean_text(once) == once


def test_a_learned_value_is_replaced_wherever_it_stands():
    redactor = Redactor("ab12")
    placeholder = redactor.learn(b"correct horse")
    assert redactor.clean(b"it was 'correct horse' all along") == b"it was '" + placeholder + b"' all along"
    redactor.learn(b"the")
    assert redactor.clean(b"the cat") == b"the cat"  # too short to mean anything


@pytest.mark.parametrize(
    "piece", [b"sk-", b"eyJ", b"TOKEN", b"-----BEGIN PRIVATE KEY", b"@", b"a@b.", b"://", b"bearer "]
)
def test_hostile_texts_take_no_more_than_a_moment(piece):
    text = piece * (200_000 // len(piece))
    assert least_cpu_s(lambda: Redactor("ab12").clean(text), tries=1) < 5
