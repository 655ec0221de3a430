"""Every provider's profile, by samples of what it and its clients say."""

from datetime import UTC, datetime

import pytest

from hivemind_addon.formats.profile.load import format_for, is_call, load_profiles
from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
from hivemind_addon.formats.wire.description import PlainRequest, describe_request
from hivemind_addon.formats.wire.dialect import dialect_of
from hivemind_addon.formats.wire.estimate import Estimator
from hivemind_addon.formats.wire.tokenizer import Tokenizer
from tests.conftest import FakeClock
from tests.formats.profile.samples import MARKS, Sample, samples

PROFILES = load_profiles(None)
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC).timestamp()
ESTIMATOR = Estimator(Tokenizer())


def of_kind(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("sample", list(samples(kind)), ids=str)


def answer_to(sample: Sample, *, streamed: bool) -> AnswerInProgress:
    profile = PROFILES.by_name[sample.profile]
    dialect = dialect_of(format_for(profile, sample.path))
    return AnswerInProgress(profile, dialect, FakeClock(0.0, NOW), is_stream_asked=streamed)


def count_words(text: str) -> int:
    return len(text.split())


@of_kind("answers")
def test_an_answer_is_judged(sample):
    """`gives`: `kind`, `retry`; `after_s`, the delay; `blocked_s`, how long the account is; `meters`, what headers tell
    (name → limit, remaining, seconds to its reset), `oddities`, how many of them say nothing; `usage`, as numbers of tokens that are not 0.
    """
    answer = answer_to(sample, streamed=False)
    assert not answer.head(sample.status, {"content-type": "application/json", **sample.headers})
    outcome, usage = answer.judge_body(sample.status, sample.body, count_words)
    gives = dict(sample.gives)
    meters = {one.meter: [one.limit, one.remaining, one.reset_in_s] for one in answer.hints.readings}
    told = {
        "kind": outcome.kind.value,
        "retry": outcome.retryable,
        "after_s": outcome.retry_after_s,
        "blocked_s": outcome.account_block_s,
    }
    assert told == {"after_s": None, "blocked_s": None, "retry": False} | {
        one: gives[one] for one in told if one in gives
    }
    assert meters == {name: pytest.approx(three) for name, three in gives.get("meters", {}).items()}
    assert len(answer.hints.oddities) == gives.get("oddities", 0)
    if "usage" in gives:
        assert used(usage) == gives["usage"]


@of_kind("streams")
def test_a_stream_is_read(sample):
    """`gives`: `phases`, from one to the next; `usage`; `kind`, `retry`, `after_s` of its end; `text`, what it says."""
    answer = answer_to(sample, streamed=True)
    media_type = sample.told.get("media_type", "text/event-stream")
    assert answer.head(200, {"content-type": media_type, **sample.headers})
    phases = [answer.phase]
    for at in range(len(sample.body)):
        answer.tee(sample.body[at : at + 1])
        if answer.phase is not phases[-1]:
            phases.append(answer.phase)
    answer.finish()
    if answer.phase is not phases[-1]:
        phases.append(answer.phase)
    outcome, gives = answer.judge_stream(), sample.gives
    assert " ".join(one.name.lower() for one in phases) == gives["phases"]
    assert outcome.kind.value == gives.get("kind", "success")
    assert outcome.retryable == gives.get("retry", False)
    assert outcome.retry_after_s == gives.get("after_s")
    if "usage" in gives:
        assert used(answer.usage(outcome, count_words)) == gives["usage"]
    if "text" in gives:
        assert "".join(part.text for part in answer.answer.parts) == gives["text"]


@of_kind("requests")
def test_a_request_is_understood(sample):
    """`gives`: `scheduled`, whether it is; `model`, `pool` (the model's share), `stream`, `max_output`, `account`,
    `session`, `kind`, `patience_s`.
    """
    host = sample.told["host"]
    name, _, port = host.partition(":")
    profile = PROFILES.match_host(name, int(port or 443))
    assert profile is not None
    assert profile.name == sample.profile
    gives = dict(sample.gives)
    assert is_call(profile, "POST", sample.path) is gives.pop("scheduled", True)
    request = PlainRequest("https", name, int(port or 443), sample.path, sample.headers, sample.body)
    told = describe_request(profile, request, ESTIMATOR, user="", peer="peer")
    known = {
        "model": told.facts.model,
        "pool": told.pool.model_group,
        "stream": told.facts.stream,
        "max_output": told.facts.max_output_tokens,
        "account": told.pool.account,
        "session": told.who.session,
        "kind": told.kind.value,
        "patience_s": told.requester.known_patience_s,
    }
    assert {one: known[one] for one in gives} == gives


def used(usage):
    numbers = {
        "input": usage.input_tokens,
        "cache_read": usage.cache_read_tokens,
        "cache_write": usage.cache_write_tokens,
        "output": usage.output_tokens,
    }
    return {name: number for name, number in numbers.items() if number} if usage.reported else "counted"


def test_every_profile_of_a_provider_has_samples_and_every_sample_says_where_it_is_from():
    every = [one for kind in ("answers", "streams", "requests") for one in samples(kind)]
    assert {one.told["from"] for one in every} <= MARKS
    assert {one.profile for one in every} == PROFILES.by_name.keys() - {"openai-compatible"}
