"""What answers say of a job, however they are cut, coded or broken."""

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.base.typed import BadValue
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.profile.model import JobRule
from hivemind_addon.formats.wire.jobs import JobReader, job_asked, job_begun
from hivemind_addon.kernel.values.ticket import Usage

PROFILES = load_profiles(None).by_name
RESPONSE = {"id": "resp_1", "status": "completed", "usage": {"input_tokens": 9, "output_tokens": 4}}
QUEUED = {"id": "resp_1", "status": "queued", "background": True, "usage": None}
MESSAGE = {"result": {"type": "succeeded", "message": {"usage": {"input_tokens": 9, "output_tokens": 4}}}}
ERRORED = {"result": {"type": "errored"}}


def events(*works):
    return "".join(f"event: response.{one['status']}\ndata: {json.dumps({'response': one})}\n\n" for one in works)


def lines(*values):
    return "\n".join(map(json.dumps, values))


BODIES = [
    ("openai", False, json.dumps(RESPONSE), (9, 4)),
    ("openai", False, "\ufeff\n" + json.dumps(RESPONSE, indent=2) + "\n", (9, 4)),
    ("openai", False, events(QUEUED, QUEUED | {"status": "in_progress"}, RESPONSE), (9, 4)),
    ("openai", False, events(QUEUED, RESPONSE).replace("\n", "\r\n"), (9, 4)),
    ("openai", False, json.dumps(RESPONSE | {"usage": None}), None),
    ("openai", False, json.dumps(RESPONSE | {"status": "failed", "usage": None}), (0, 0)),
    ("openai", False, json.dumps(RESPONSE | {"usage": {"input_tokens": -5, "output_tokens": 4}}), None),
    ("anthropic", True, lines(MESSAGE, ERRORED, MESSAGE), (18, 8)),
    ("anthropic", True, lines(MESSAGE, ERRORED) + "\r\n{broken\n\n" + lines(MESSAGE) + "\n", (18, 8)),
    ("anthropic", True, lines(ERRORED), (0, 0)),
]


@pytest.mark.parametrize(("name", "is_results", "text", "used"), BODIES)
@given(cuts=st.lists(st.integers(0, 400), max_size=6), is_packed=st.booleans())
def test_an_end_is_read_alike_however_its_body_is_cut_and_packed(name, is_results, text, used, cuts, is_packed):
    body = gzip.compress(text.encode()) if is_packed else text.encode()
    reader = JobReader(PROFILES[name].jobs[0], "gzip" if is_packed else "", is_results=is_results)
    places = sorted({0, *cuts, len(body)})
    for start, end in pairwise(places):
        reader.feed(body[start:end])
    reader.finish()
    assert reader.has_ended
    expected = used and Usage(input_tokens=used[0], output_tokens=used[1], reported=True)
    assert reader.result.usage == expected


@given(st.binary(max_size=300), st.sampled_from(["", "gzip", "br", "nonsense"]))
def test_nothing_that_comes_is_an_error_or_an_end(body, coding):
    reader = JobReader(PROFILES["openai"].jobs[0], coding)
    reader.feed(body)
    reader.finish()
    assert not reader.has_ended


def test_paths_name_jobs_in_any_spelling():
    openai, anthropic = PROFILES["openai"], PROFILES["anthropic"]
    assert job_asked(openai, "/v1//Responses/resp_1/cancel?x=1")[1] == "resp_1"
    assert job_asked(anthropic, "/v1/messages/batches/b1/results")[1:] == ("b1", True)
    assert job_asked(anthropic, "/v1/messages/batches/b1")[1:] == ("b1", False)
    assert job_asked(openai, "/v1/models/gpt-5") is None
    assert job_begun(openai, "/v1/responses/") is openai.jobs[0]
    assert job_begun(openai, "/v1/chat/completions") is None
    with pytest.raises(BadValue, match="names no job"):
        JobRule(path="*/responses", format="anthropic")
