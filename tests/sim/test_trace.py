"""Traces: nothing that names stays, everything that a limiter did does, and bad files are named."""

import base64
import gzip
import json
from dataclasses import fields, is_dataclass, replace
from string import ascii_letters

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.kernel.values.ticket import Dimension, OutcomeKind, PoolKey, Reading
from hivemind_addon.plugins.captures.model import CapturedChunk, NotACapture, encode
from hivemind_addon.sim.trace import read_recorded, trace_of, write_trace
from hivemind_addon.tools.cli import main
from tests.sim.replay.nights import attempt, call, capture, fleet

READING = Reading("input-tokens", Dimension.INPUT_TOKENS, 60.0, 40_000.0, 0.0, 12.3456)
SECRETS = st.lists(st.text(ascii_letters, min_size=12, max_size=20), min_size=4, max_size=4, unique=True)


def seeded(value, names):
    """The value with each text that may be anything replaced by the next of the names."""
    if isinstance(value, str):
        return next(names)
    if isinstance(value, msgspec.Struct):
        told = {name: seeded(one, names) for name, one in msgspec.structs.asdict(value).items()}
        return msgspec.structs.replace(value, **told)
    if is_dataclass(value):
        return replace(value, **{one.name: seeded(getattr(value, one.name), names) for one in fields(value)})
    return tuple(seeded(one, names) for one in value) if isinstance(value, tuple) else value


def codes(secret):
    raw = secret.encode()
    plain = [raw, raw.hex().encode(), base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw[::-1])]
    return [form for one in plain for form in (one, one[::-1], one.lower())]


@given(SECRETS)
def test_no_text_of_a_capture_is_in_its_trace_in_any_usual_code(secrets):
    made = fleet(2, 3)
    first = replace(made.calls[0].attempts[-1], readings=(READING,), chunks=(CapturedChunk(1.0, 77),))
    made = replace(made, calls=(replace(made.calls[0], attempts=(first,)), *made.calls[1:]))
    used = []

    def names():
        while True:
            used.append(f"{secrets[len(used) % 4]}{len(used)}")
            yield used[-1]

    trace = trace_of(seeded(replace(made, damage=("a",), proxy_version="b", profiles=("c",)), names()))
    assert len(used) > 60
    for secret in secrets:
        for code in codes(secret):
            assert code not in trace
    assert not any(one in trace for one in (b"chunks", b"bytes", b"wall"))


def test_a_trace_reads_back_as_the_capture_with_numbers_for_names(tmp_path):
    refused = attempt(
        3.0, took_s=0.25, kind=OutcomeKind.THROTTLED, status=429, reason="429 Acme's limit", retry_after_s=7.5
    )
    cut = attempt(4.0, kind=OutcomeKind.FAILED, status=None, reason="cannot connect: refused by 10.1.2.3", number=2)
    won = replace(attempt(9.0, number=3), readings=(READING,))
    secret = call("c1", 2.5, agent="ada", attempts=(refused, cut, won), patience_s=33.0, max_tokens=900)
    other = call("c2", 5.0, agent="bob", profile="acme-own", pool=PoolKey("llm.acme.example", "key-2", "gpt-acme"))
    again = call("c3", 20.0, agent="ada")
    made = capture(secret, other, again)
    for name in ("night.trace", "night.trace.gz"):
        size = write_trace(made, tmp_path / name)
        assert size == (tmp_path / name).stat().st_size
        back = read_recorded(tmp_path / name)
        first, second, third = back.calls
        assert [one.agent for one in back.calls] == ["agent-1", "agent-2", "agent-1"]
        assert (first.pool.host, second.pool.host, third.pool) == ("host-1", "host-2", first.pool)
        assert (first.profile, second.profile) == ("anthropic", "profile-1")
        assert (first.at_s, first.ended_s, first.patience_s, first.max_tokens) == (0.0, 8.5, 33.0, 900)
        assert [one.reason for one in first.attempts] == ["throttled", "cannot connect", "success"]
        assert [(one.at_s, one.ended_after_s, one.status) for one in first.attempts][:1] == [(0.5, 0.25, 429)]
        assert first.attempts[0].retry_after_s == 7.5
        (reading,) = first.attempts[2].readings
        assert (reading.meter, reading.limit, reading.remaining, reading.reset_in_s) == (
            "input-tokens",
            4e4,
            0.0,
            12.346,
        )
        assert first.attempts[2].usage == won.usage
        assert back.limits[0].limit == 60
        assert [json.loads(line) for line in trace_of(back).splitlines()] == [
            json.loads(line) for line in trace_of(made).splitlines()
        ]


GOOD = trace_of(fleet(1, 2)).decode()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param('{"hivemind_trace":1', '{"hivemind_trace":9', ("line 1", "version 9", "upgrade"), id="version"),
        pytest.param('"at_s":0.0', '"at_s":-5.0', ("line 1: limits[0].at_s: -5", "correct that line"), id="negative"),
        pytest.param('"status":200', '"status":"ok"', ("line 2: attempts[0].status", "int"), id="word"),
        pytest.param('"kind":"success"', '"kind":"luck"', ("line 2: attempts[0].kind", "luck"), id="kind"),
        pytest.param(GOOD[-40:], "", ("line 3", "capture trace"), id="cut"),
        pytest.param(GOOD, "{}", ("version", "hivemind run --capture"), id="another"),
    ],
)
def test_a_bad_trace_is_named_with_line_key_and_cure(tmp_path, old, new, words):
    file = tmp_path / "bad.trace"
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(NotACapture) as error:
        read_recorded(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_damaged_packed_trace_is_named(tmp_path):
    file = tmp_path / "bad.trace.gz"
    file.write_bytes(gzip.compress(GOOD.encode())[:-30])
    with pytest.raises(NotACapture, match="damaged"):
        read_recorded(file)


def test_the_command_writes_small_files_and_overwrites_none(tmp_path):
    source, output = tmp_path / "night.json", tmp_path / "night.trace.gz"
    source.write_bytes(encode(fleet(20, 10)))
    runner = CliRunner()
    first = runner.invoke(main, ["capture", "trace", str(source), "--output", str(output)])
    assert first.exit_code == 0
    assert "of 200 calls" in first.output
    assert output.stat().st_size < 100 * 200
    second = runner.invoke(main, ["capture", "trace", str(source), "--output", str(output)])
    assert second.exit_code == 1
    assert "is there already" in second.output
    printed = runner.invoke(main, ["capture", "trace", str(output)])
    assert json.loads(printed.stdout.splitlines()[0])["hivemind_trace"] == 1
