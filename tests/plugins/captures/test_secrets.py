import base64
import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.plugins.captures.secrets import Redactor, clean_stream
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


RANDOM, HEX = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY", "0123456789abcdef" * 4
BASIC = base64.b64encode(f"ann:{RANDOM}".encode()).decode()
PEM = "-----BEGIN RSA PRIVATE KEY-----"
ALONE = (
    *(f"{prefix}{RANDOM}" for prefix in ("GOCSPX-", "1//0", "hvs.", "glpat-", "sk_live_", "hf_", "xoxb-1-2-", "npm_")),
    *(f"{prefix}{HEX[:32]}" for prefix in ("SK", "key-", "dapi", "shpat_")),
    *(f"SG.{RANDOM}.{RANDOM}", f"bot123456789:AAF{RANDOM}", f"123456789:AAF{RANDOM}", f"eyJhbGciOi.eyJzdWIi.{RANDOM}"),
    f"AGE-SECRET-KEY-1{RANDOM.upper()}",
    f"https://hooks.slack.com/services/T01/B01/{RANDOM}",
    f"https://discord.com/api/v10/webhooks/123456789012345678/{RANDOM}",
    f"https://ann:{RANDOM}@git.test/repo.git",
    f"https://a.blob.test/c?sv=1&sig={RANDOM}%3D",
    f"https://b.s3.test/k?X-Amz-Expires=60&X-Amz-Signature={HEX}",
    f"Authorization: AWS4-HMAC-SHA256 Credential=a/20260101/s3/aws4_request, SignedHeaders=host, Signature={HEX}",
    *(
        f"{name}: {scheme} {BASIC}"
        for name in ("authorization", "Proxy-Authorization")
        for scheme in ("Basic", "Token")
    ),
    *(f"{name}: theme=dark; sid={RANDOM}" for name in ("cookie", "Cookie", "set-cookie", '"Cookie"')),
    f"AccountName=acme;AccountKey={RANDOM}==;EndpointSuffix=test",
    *(f"machine api.test{gap}login ann{gap}password hunter2{RANDOM}" for gap in (" ", "\n  ")),
    *(f"//registry.test/:{line}" for line in (f"_authToken={RANDOM}", f"_password={RANDOM}", f"_auth={BASIC}")),
    f'{{"auths": {{"docker.test": {{"auth": "{BASIC}"}}}}}}',
    f"    client-key-data: {base64.b64encode(f'{PEM}{RANDOM}'.encode()).decode()}",
    f"[default]\naws_secret_access_key = {RANDOM}/+\naws_session_token = {RANDOM}",
    f"curl -u ann:{RANDOM} https://api.test",
    f"db.test:5432:app:ann:{RANDOM}",
    f"root:$6$salt$sa{RANDOM}:19000:0:::",
    *(f"{PEM}{end}MII{RANDOM}{end}-----END RSA PRIVATE KEY-----" for end in ("\n", "\\n")),
    f"{PEM}\n{RANDOM}",
    '{"user_id": "user_' + HEX + '_account_01234567-89ab-cdef-0123-456789abcdef_session_s"}',
    '{"user_id": "{\\"device_id\\":\\"d0d0d0d0d0\\",\\"account_uuid\\":\\"' + RANDOM + '\\"}"}',
)
NAMES = (
    *(
        "password",
        "db_password",
        "dbPassword",
        "PGPASSWORD",
        "Passwd",
        "secret",
        "clientSecret",
        "CLIENT_SECRET",
        "token",
    ),
    *("accessToken", "refresh_token", "API_TOKEN", "api_key", "apiKey", "x-api-key", "API-Key", "aws_session_token"),
    *("secret_access_key", "SECRET_KEY", "passphrase", "private_key"),
)
FORMS = (
    *("{n}={v}", "{n}: {v}", "{n} = {v}", "{n}:{v}", "  - {n}={v}", "export {n}={v}", "?a=b&{n}={v}&x=1", "({n}={v})"),
    *('{n}="{v}"', "{n}='{v}'", '{n}: "{v}",', '"{n}": "{v}"', "'{n}': '{v}'", '"{n}" => "{v}"', '{n} := "{v}"'),
    *('{n}: str = "{v}"', 'os.environ["{n}"] = "{v}"', "`{n}`: `{v}`", "<{n}>{v}</{n}>", "--{n} {v}", "--{n}={v}"),
    *("the {n} is {v}", "{n}1={v}"),
)
NAMED = [form.replace("{n}", name) for form in FORMS for name in NAMES]
PLACES = {
    "as it is": lambda text: text,
    "in JSON": lambda text: json.dumps({"content": f"see\n{text}\nand so on"}),
    "in JSON in JSON": lambda text: json.dumps({"arguments": json.dumps({"file": f"see\n{text}\t# it"})}),
    "in a difference": lambda text: json.dumps(f"@@ -1 +1 @@\n+{text}\n-other"),
}


@pytest.mark.parametrize("place", PLACES)
def test_each_kind_of_credential_is_found_in_each_place(place):
    leaks = [
        text
        for text in (
            *ALONE,
            *(form.replace("{v}", value) for form in NAMED for value in (RANDOM, "hunter2x", "p@$w0rd!x#9")),
        )
        if re.search(
            "aB3dE5fG|AB3DE5FG|0123456789abcdef0|hunter2|p@.w0rd|YW5uOmFC|89ab-cdef", clean(PLACES[place](text))
        )
    ]
    assert leaks == []


@pytest.mark.parametrize("place", ["in JSON", "in JSON in JSON"])
@given(st.sampled_from(NAMED[: 8 * len(NAMES)]), st.text("abcWYZ0189_-+./=!#%$*", min_size=9, max_size=40))
def test_values_of_any_characters_go_with_their_names(place, form, value):
    if re.match("(?=.{0,5}[a-z])(?=.{0,5}[0-9])[a-zA-Z0-9]{6}", value) and len(set(value)) > 3:
        cleaned = clean(PLACES[place](form.replace("{v}", value)))
        assert value[:6] not in cleaned
        assert json.loads(cleaned)


READABLE = (
    "def task_management_system(self): return 'risk-assessment-of-everything'  # see user_name, token_count",
    "@pytest.fixture\nasync def eyJ(): ...  # 3 @ 4, a basic understanding, disk-management-system-for-all",
    "https://example.test:8080/path@2x max_tokens=4096",
    '{"max_tokens": 4096, "usage": {"input_tokens": 12345678, "output_tokens": 9, "cache_read_input_tokens": 100000}}',
    '{"logprobs": {"content": [{"token": "hello", "logprob": -0.1}, {"token": " world", "logprob": -2.5}]}}',
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8\nid 01234567-89ab-cdef-0123-456789abcdef\nsha256:" + HEX,
    '{"type": "image", "source": {"media_type": "image/png", "data": "iVBORw0KGgo' + RANDOM * 9 + '"}}',
    '{"password": {"type": "string", "description": "The password of the user"}, "required": ["token", "apiKey"]}',
    "password: string; token: Token; apiKey?: string; secret: bytes = None; password: Optional[str] = None",
    "token = get_token(user_1)\nsecret = os.environ['SECRET_1']\npassword=self.password2\nAPI_KEY=${API_KEY1}",
    "if password == stored1 or token != expected_token2: raise AuthError('invalid token: retry')",
    "client = Client(api_key=api_key, password=ssl_password, token=config.token)",
    "The password is required, a token is a piece of 4 characters, the secret of 12factor apps; tokens: 1000 per 60s",
    "Authorization: the process that decides what a user may do. Cookie: a small file. Basic authorization: optional",
    "author: Ann, auth: oauth2, authority = 7 sessions, passes: 12, bypass=true, compass: north1, monkey: 123abc456",
    "password = input('Password: ')  # secret sauce; prompt_cache_key: fleet-7-abcdef; sort_key=created_at_1",
    "git clone https://github.com/a/b.git && docker run -u 1000:1000 image:tag2 --token-count 100",
    '{"type": "token_count", "key": "value-123456", "session": "s-1234567890", "model": "claude-sonnet-4-5"}',
)


@pytest.mark.parametrize("place", PLACES)
def test_prose_code_counts_and_hashes_stay_readable(place):
    assert [text for text in READABLE if clean(PLACES[place](text)) != PLACES[place](text)] == []


def clean(text):
    return Redactor("ab12").clean_text(text)


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


HOSTILE = (
    *(b"sk-", b"-eyJ", b"TOKEN", b"-----BEGIN PRIVATE KEY", b"@", b"a@b.", b"://", b"bearer ", b"auth=", b"pass="),
    *(
        b"--token ",
        b'token:"a',
        b"login password ",
        b"sig=1",
        b"cookie: a=",
        b"authorization: a",
        b"token=a,",
        b"secret\\",
    ),
)


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_texts_take_time_in_proportion_to_their_size(piece):
    text = piece * (200_000 // len(piece))
    assert least_cpu_s(lambda: Redactor("ab12").clean(text), tries=1) < 2


KEY = "sk-ant-api03-Ab1Cd2Ef3Gh4Ij5Kl6"


def anthropic(text):
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def anthropic_tool(text):
    return {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": text}}


def chat(text):
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def chat_tool(text):
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}]}


def responses(text):
    return {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0, "delta": text}


def ollama(text):
    return {"message": {"role": "assistant", "content": text}, "done": False}


SHAPES = [anthropic, anthropic_tool, chat, chat_tool, responses, ollama]


def stream(events, *, data=True):
    lines = [json.dumps(event).encode() for event in events]
    return b"".join(b"data: %s\n\n" % line if data else line + b"\n" for line in lines)


def texts(body):
    """All strings of a stream that are pieces of a text, joined."""
    found = []

    def walk(value):
        if isinstance(value, dict):
            for name, one in value.items():
                if isinstance(one, str) and name in ("text", "partial_json", "content", "arguments", "delta"):
                    found.append(one)
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    for line in body.splitlines():
        if line:
            walk(json.loads(line.removeprefix(b"data:")))
    return "".join(found)


@given(
    st.sampled_from(SHAPES),
    st.text("ab é\n", max_size=10),
    st.text("ab é\n", max_size=10),
    st.lists(st.integers(1, 60), max_size=6),
    st.booleans(),
)
def test_a_secret_in_pieces_is_found_wherever_it_is_torn(shape, before, after, cuts, data):
    text = f"{before} {KEY} {after}"
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    redactor = Redactor("ab12")
    body = redactor.clean(clean_stream(stream(map(shape, pieces), data=data), redactor))
    assert KEY not in texts(body)
    assert texts(body) == f"{before} redacted-ab12-1 {after}"


def test_a_value_is_found_behind_a_name_in_another_piece():
    redactor = Redactor("ab12")
    body = redactor.clean(clean_stream(stream(map(chat, ["the pass", "word: ", "hunter2", "x, and"])), redactor))
    assert texts(body) == "the password: redacted-ab12-1, and"


def test_pieces_of_different_texts_are_not_put_together():
    body = stream([anthropic(KEY[:10]), anthropic_tool(KEY[10:]), chat(KEY[:10])])
    assert clean_stream(body, Redactor("ab12")) == body


def test_a_stream_without_secrets_is_not_touched():
    body = b': comment\r\ndata: {"delta": "hello"}\r\n\r\ndata: [DONE]\r\n\r\ndata: {broken\n'
    assert clean_stream(body, Redactor("ab12")) is body
