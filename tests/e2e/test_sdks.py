"""The official Python SDKs, with their own retries off, through forward proxy and TLS, before a faulty provider."""

import ssl
from contextlib import ExitStack

import anthropic
import openai
import pytest

from hivemind_addon.lab.sim.faults import NAMED
from tests.e2e.proxy import PATIENCE_S

pytestmark = pytest.mark.slow

FAULTS = ["429-retry-after", "502", "reset-before-head", "body-cut", "529"]
STREAM_FAULTS = ["503", "close-before-head", "error-first", "error-second", "head-then-reset"]
QUESTION = [{"role": "user", "content": "hello"}]


@pytest.fixture(params=["h1", "h2"])
def version(request):
    return request.param


@pytest.fixture
def http_client(stage, version):
    """Makes what a user gives to an SDK, of the SDK's own kind: the proxy's URL, its CA, and HTTP/2."""
    context = ssl.create_default_context(cafile=str(stage.proxy.ca))
    way = {
        "proxy": stage.proxy.url("sdk"),
        "verify": context,
        "http2": version == "h2",
        "trust_env": False,
        "timeout": PATIENCE_S,
    }
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(kind(**way))


@pytest.fixture
def attempts(stage, key):
    """How many attempts the provider has seen; afterwards nothing may be left in the proxy."""
    yield lambda: stage.providers.attempts(key)
    stage.settled()


def make_anthropic(http_client, version, key):
    client = http_client(anthropic.DefaultHttpxClient)
    return anthropic.Anthropic(api_key=key, base_url=f"https://{version}.sim.test", max_retries=0, http_client=client)


def make_openai(http_client, version, key):
    client = http_client(openai.DefaultHttpxClient)
    return openai.OpenAI(api_key=key, base_url=f"https://{version}.chat.test/v1", max_retries=0, http_client=client)


def test_anthropics_sdk_sees_one_good_answer(stage, http_client, version, key, attempts):
    stage.providers.script(key, [NAMED[name] for name in FAULTS])
    message = make_anthropic(http_client, version, key).messages.create(model="sim-1", max_tokens=64, messages=QUESTION)
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens == 8
    assert message.content[0].text
    assert attempts() == len(FAULTS) + 1


def test_anthropics_sdk_sees_one_good_stream(stage, http_client, version, key, attempts):
    stage.providers.script(key, [NAMED[name] for name in STREAM_FAULTS])
    with make_anthropic(http_client, version, key).messages.stream(
        model="sim-1", max_tokens=64, messages=QUESTION
    ) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == message.content[0].text
    assert message.usage.output_tokens == 8
    assert attempts() == len(STREAM_FAULTS) + 1


def test_openais_sdk_sees_one_good_answer(stage, http_client, version, key, attempts):
    stage.providers.script(key, [NAMED[name] for name in FAULTS])
    completion = make_openai(http_client, version, key).chat.completions.create(
        model="sim-1", max_tokens=64, messages=QUESTION
    )
    assert completion.choices[0].message.content
    assert completion.usage.completion_tokens == 8
    assert attempts() == len(FAULTS) + 1


def test_openais_sdk_sees_one_good_stream(stage, http_client, version, key, attempts):
    stage.providers.script(key, [NAMED[name] for name in STREAM_FAULTS])
    stream = make_openai(http_client, version, key).chat.completions.create(
        model="sim-1", max_tokens=64, messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")
    assert chunks[-1].usage.completion_tokens == 8
    assert attempts() == len(STREAM_FAULTS) + 1


def test_an_error_that_waiting_cannot_cure_reaches_the_sdk_as_the_provider_sent_it(
    stage, http_client, version, key, attempts
):
    stage.providers.script(key, [NAMED["401"]])
    with pytest.raises(anthropic.AuthenticationError):
        make_anthropic(http_client, version, key).messages.create(model="sim-1", max_tokens=64, messages=QUESTION)
    stage.providers.script(key, [NAMED["400"]])
    with pytest.raises(openai.BadRequestError):
        make_openai(http_client, version, key).chat.completions.create(model="sim-1", messages=QUESTION)
    assert attempts() == 2
