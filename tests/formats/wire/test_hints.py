import json
import math
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.profile.model import MeterHeaders, Profile
from hivemind_addon.formats.wire.hints import CODEX_WINDOWS, read_hints, read_stream_windows
from hivemind_addon.formats.wire.sse import SseParser
from hivemind_addon.formats.wire.waits import LONGEST_S, parse_reset
from hivemind_addon.kernel.values.ticket import Dimension, Reading, WindowReading

DATA = Path(__file__).parent / "data"
NOW = datetime(2026, 11, 20, 10, 0, tzinfo=UTC).timestamp()
REQUESTS = Dimension.REQUESTS


def recorded_headers(path: str) -> dict[str, str]:
    return json.loads((DATA / f"{path}.json").read_text())["headers"]


def meter(stem: str, kind: str, dimension: Dimension = REQUESTS) -> MeterHeaders:
    """`stem` with `{}` where limit, remaining, reset stand."""
    return MeterHeaders(
        meter=kind,
        dimension=dimension,
        limit=stem.format("limit"),
        remaining=stem.format("remaining"),
        reset=stem.format("reset"),
    )


def test_recorded_headers_are_readings(subtests):
    cases = [
        ("anthropic/message", "anthropic-ratelimit-requests-{}", 1000, 999, 0),
        ("anthropic/message", "anthropic-ratelimit-output-tokens-{}", 400_000, 390_000, 1.5),
        ("anthropic/rate_limit", "anthropic-ratelimit-input-tokens-{}", 2_000_000, 0, 18),
        ("anthropic-subscription/rejected", "anthropic-ratelimit-unified-5h-{}", None, None, 0),
        ("anthropic-subscription/rejected", "anthropic-ratelimit-unified-7d-{}", None, None, 432_001),
        ("openai/chat", "x-ratelimit-{}-requests", 500, 499, 0.12),
        ("openai/chat", "x-ratelimit-{}-tokens", 500_000, 482_000, 360),
        ("openai/rate_limit", "x-ratelimit-{}-tokens", 500_000, 0, 1.2),
        ("azure/rate_limit", "x-ratelimit-{}-tokens", 10_000, 0, 300),
        ("azure/rate_limit", "x-ratelimit-{}-requests", 60, 0, 10),
        ("codex/usage_limit", "x-codex-primary-{}-at", None, None, 9001),
        ("groq/chat", "x-ratelimit-{}-requests", 14_400, 14_370, 179.56),
        ("groq/chat", "x-ratelimit-{}-tokens", 18_000, 17_997, 7.66),
        ("cerebras/chat", "x-ratelimit-{}-tokens-minute", 60_000, 59_000, 11.382867),
        ("openrouter/rate_limit", "x-ratelimit-{}", 20, 0, 60),
        ("openrouter/rate_limit", "x-ratelimit-{}", 20, 0, 60),
        ("together/chat", "x-ratelimit-{}", 10, 9, 3),
    ]
    for path, stem, limit, remaining, reset_in_s in cases:
        with subtests.test(path=path, stem=stem):
            hints = read_hints(Profile(meters=(meter(stem, "m"),)), recorded_headers(path), NOW)
            (reading,) = hints.readings
            assert (reading.limit, reading.remaining) == (limit, remaining)
            assert reading.reset_in_s == pytest.approx(reset_in_s, abs=1e-6)
            assert hints.oddities == ()


def test_a_reading_carries_what_the_profile_knows():
    profile = Profile(
        meters=(
            MeterHeaders(
                meter="input-tokens",
                dimension=Dimension.INPUT_TOKENS,
                limit="anthropic-ratelimit-input-tokens-limit",
                remaining="anthropic-ratelimit-input-tokens-remaining",
                window_s=30,
                granularity=1000,
            ),
        ),
        response_account_headers=("anthropic-workspace-id", "anthropic-organization-id"),
    )
    hints = read_hints(profile, recorded_headers("anthropic/rate_limit"), NOW)
    assert hints.readings == (
        Reading("input-tokens", Dimension.INPUT_TOKENS, 30, 2_000_000, 0, reset_in_s=None, granularity=1000),
    )
    assert hints.account == "org-redacted-1"
    assert hints.retry_after_s == 17
    assert hints.should_retry is True


def test_limits_that_bind_nothing_are_no_readings():
    profile = Profile(meters=tuple(meter(f"x-ratelimit-{{}}-{kind}", kind) for kind in ("requests", "tokens")))
    hints = read_hints(profile, recorded_headers("azure/limits_that_bind_nothing"), NOW)
    assert hints.readings == ()
    assert hints.oddities == (
        "x-ratelimit-limit-requests: cannot read '-1'",
        "x-ratelimit-limit-tokens: cannot read '0'",
    )


def test_silent_headers_are_silent_hints():
    profile = Profile(meters=(meter("x-{}", "m"),))
    hints = read_hints(profile, {}, NOW)
    assert hints.readings == ()
    assert hints.oddities == ()
    assert hints.retry_after_s is None
    assert hints.should_retry is None
    assert hints.account is None


def test_every_known_format_is_read(subtests):
    cases = [
        ("2026-11-20T10:00:30Z", 31),  # it may be cut
        ("2026-11-20T10:00:30.000Z", 30),
        ("2026-11-20T09:59:59Z", 0),
        ("2026-11-20t10:00:30.25z", 30.25),
        ("2026-11-20T10:00:30.123456789Z", 30.123456),
        ("2026-11-20T12:30:00+02:00", 1801),
        ("2026-11-20T04:00:00-06:00", 0),
        ("2026-11-20 10:01:00", 61),
        ("2020-01-01T00:00:00Z", 0),
        (str(NOW + 5), 5),
        (str(int(NOW + 5)), 6),
        ("0", 0),
        (str(int((NOW + 5) * 1000)), 5),
        (str(int(NOW + 5)), 6),
        (str(int((NOW + 5) * 1000)), 5),
        ("1s", 1),
        ("6m0s", 360),
        ("12ms", 0.012),
        ("2m59.56s", 179.56),
        ("1h2m3.5s", 3723.5),
        ("1d", 86_400),
        ("250µs", 0.00025),
        ("34.07s", 34.07),
        ("10", 10),
        ("11.382867", 11.382867),
        ("8.5e-05", 0.000085),
        (" 7s ", 7),
    ]
    for value, expected_s in cases:
        with subtests.test(value=value):
            assert parse_reset(value, NOW) == pytest.approx(expected_s, abs=1e-5)


def test_what_cannot_be_read_or_be_true_is_none():
    words = [
        "-1",
        "-5s",
        "NaN",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1e99",
        "soon",
        "1_000",
        "٣",
        "s",
        "1x",
        "1s2",
        "2026-11-20",
        "0x10",
        "1,000",
        "500d",
    ]
    dates = ["2026-13-40T99:00:00Z", "9999-12-31T23:59:59-23:59"]
    values = ["", " ", "9" * 90, "9" * 5000, "1s, 2s", "5, 6", "\x00", *words, *dates]
    assert [value for value in values if parse_reset(value, NOW) is not None] == []


delays_s = st.floats(0, 30 * 86_400)


@given(delays_s, st.integers(-14, 14))
def test_written_timestamps_are_read_back(delay_s, offset_h):
    instant = datetime.fromtimestamp(NOW + delay_s, timezone(timedelta(hours=offset_h)))
    cut_s = 0 if instant.microsecond or instant.timestamp() <= NOW else 1
    assert parse_reset(instant.isoformat(), NOW) == pytest.approx(delay_s + cut_s, abs=1e-3)


@given(st.integers(0, 10), st.integers(0, 23), st.integers(0, 59), st.floats(0, 59.99))
def test_written_durations_are_read_back(days, hours, minutes, seconds):
    text = f"{days}d{hours}h{minutes}m{seconds:.3f}s"
    expected_s = days * 86_400 + hours * 3600 + minutes * 60 + seconds
    assert parse_reset(text, NOW) == pytest.approx(expected_s, abs=1e-3)


values = st.one_of(
    st.text(max_size=120),
    st.floats().map(str),
    st.integers().map(str),
    st.text("0123456789.hmsdeTZ:+-, ", max_size=30),
    st.datetimes().map(lambda instant: instant.isoformat() + "Z"),
    st.datetimes(timezones=st.just(UTC)).map(lambda instant: format_datetime(instant, usegmt=True)),
)


@given(values, st.floats(0, 1e11))
def test_any_text_is_a_finite_delay_or_none(value, wall_now):
    delay_s = parse_reset(value, wall_now)
    assert delay_s is None or (math.isfinite(delay_s) and delay_s >= 0)


HEADERS = ["x-limit", "x-remaining", "x-reset", "retry-after", "retry-after-ms", "x-should-retry", "date", "x-org"]


@given(st.dictionaries(st.sampled_from(HEADERS), values))
def test_any_headers_are_hints_within_bounds(headers):
    profile = Profile(meters=(meter("x-{}", "m"),), response_account_headers=("x-org",))
    hints = read_hints(profile, headers, NOW)
    for reading in hints.readings:
        assert all(
            value is None or 0 <= value <= 1e15 for value in (reading.limit, reading.remaining, reading.reset_in_s)
        )
    assert hints.retry_after_s is None or 0 <= hints.retry_after_s <= LONGEST_S
    assert len(hints.oddities) <= len(headers)
    assert all(len(oddity) < 250 and oddity.isprintable() for oddity in hints.oddities)


def test_retry_after_is_read(subtests):
    cases = [
        ({"retry-after": "17"}, 17),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "30s"}, 30),
        ({"retry-after": "Fri, 20 Nov 2026 10:01:00 GMT"}, 61),
        ({"retry-after": "Fri, 20 Nov 2026 09:00:00 GMT"}, 0),
        ({"retry-after": "1382400"}, 1_382_400),
        ({"retry-after": "Wed, 02 Dec 2026 10:00:00 GMT"}, 12 * 86_400 + 1),
        ({"retry-after": "2026-11-20T10:01:00Z"}, 61),
        ({"retry-after": str(int(NOW) + 90)}, 91),
        ({"retry-after": "10", "retry-after-ms": "9600"}, 9.6),
        ({"retry-after": "10", "retry-after-ms": "x"}, 10),
        (recorded_headers("azure/rate_limit"), 9.6),
        (recorded_headers("anthropic-subscription/rejected"), 2094),
        (recorded_headers("github-models/daily"), 63_214),
    ]
    for headers, expected_s in cases:
        with subtests.test(headers=headers, expected_s=expected_s):
            assert read_hints(Profile(), headers, NOW).retry_after_s == pytest.approx(expected_s)


def test_a_bad_retry_after_is_an_oddity(subtests):
    bad = ["", "-1", "NaN", "inf", "1e400", "5, 5", "later", "Fri, 99 Nov 2026 10:01:00 GMT", "999999999"]
    for value in bad:
        with subtests.test(value=value):
            hints = read_hints(Profile(), {"retry-after": value}, NOW)
            assert hints.retry_after_s is None
            assert hints.oddities == (f"retry-after: cannot read '{value}'",)


def test_a_key_that_is_echoed_as_a_value_is_not_told():
    hints = read_hints(Profile(), {"retry-after": "use sk-ant-api03-abcdef instead, " + "or wait " * 9}, NOW)
    assert hints.oddities == ("retry-after: cannot read 'use … instead, or wait or wait or wait …'",)


def test_instants_follow_the_providers_clock_when_it_is_off():
    profile = Profile(meters=(meter("x-{}", "m"),))
    headers = {"date": "Fri, 20 Nov 2026 09:00:00 GMT", "x-reset": "2026-11-20T09:00:30Z"}
    headers["retry-after"] = "Fri, 20 Nov 2026 09:00:45 GMT"
    hints = read_hints(profile, headers, NOW)
    assert hints.readings[0].reset_in_s == 31
    assert hints.retry_after_s == 46


@pytest.mark.parametrize("date", ["Fri, 20 Nov 2026 10:00:03 GMT", "yesterday", ""])
def test_a_date_that_is_close_or_unreadable_changes_nothing(date):
    profile = Profile(meters=(meter("x-{}", "m"),))
    hints = read_hints(profile, {"date": date, "x-reset": "2026-11-20T10:00:30Z"}, NOW)
    assert hints.readings[0].reset_in_s == 31


def test_what_can_be_understood_counts_beside_what_cannot():
    profile = Profile(meters=(meter("x-{}", "m"),))
    hints = read_hints(profile, {"x-limit": "many", "x-remaining": "7", "x-reset": "z" * 60 + "\n"}, NOW)
    assert hints.readings == (Reading("m", REQUESTS, 60, limit=None, remaining=7),)
    assert hints.oddities == ("x-limit: cannot read 'many'", "x-reset: cannot read '…\\n'")


@pytest.mark.parametrize(
    ("value", "expected", "odd"), [("true", True, 0), (" False ", False, 0), ("maybe", None, 1), ("", None, 1)]
)
def test_should_retry_is_true_false_or_odd(value, expected, odd):
    hints = read_hints(Profile(), {"x-should-retry": value}, NOW)
    assert hints.should_retry is expected
    assert len(hints.oddities) == odd


def test_an_account_that_is_no_name_is_an_oddity_and_the_next_one_counts():
    profile = Profile(response_account_headers=("x-a", "x-b", "x-c"))
    hints = read_hints(profile, {"x-a": "  ", "x-b": "o" * 300, "x-c": "org-1"}, NOW)
    assert hints.account == "org-1"
    assert hints.oddities == ("x-b: cannot read '…'",)


# Long windows ---------------------------------------------------------------------------------------------------------

PACKAGED = load_profiles(None).by_name


def test_a_claude_subscriptions_windows_are_read():
    hints = read_hints(PACKAGED["anthropic"], recorded_headers("anthropic-subscription/rejected"), NOW)
    assert hints.windows == (
        WindowReading("5h", used=1.02, status="rejected", resets_in_s=1795168800 - NOW),
        WindowReading("7d", used=0.41, status="allowed", resets_in_s=1795600801 - NOW),
        WindowReading("unified", status="rejected", resets_in_s=1795168800 - NOW),
    )
    assert hints.readings == ()
    assert hints.oddities == ()


def test_codex_windows_are_read_from_headers_and_from_the_stream_alike():
    primary = WindowReading("primary", used=1.0, resets_in_s=1795177801 - NOW, length_s=18_000.0)
    secondary = WindowReading("secondary", used=0.375, resets_in_s=1795600801 - NOW, length_s=604_800.0)
    assert read_hints(PACKAGED["codex"], recorded_headers("codex/usage_limit"), NOW).windows == (primary, secondary)
    first = SseParser().feed((DATA / "codex/response.sse").read_bytes())[0]
    assert first.event == CODEX_WINDOWS
    assert [(one.window, one.used, one.length_s) for one in read_stream_windows(first.data, NOW)] == [
        ("primary", 0.425, 18_000.0),
        ("secondary", 0.07, 604_800.0),
    ]


def test_a_window_whose_end_has_passed_ends_now():
    data = json.dumps({"rate_limits": {"primary": {"used_percent": 1, "reset_at": NOW - 5}}}).encode()
    assert read_stream_windows(data, NOW) == (WindowReading("primary", used=0.01, resets_in_s=0.0),)


def test_an_answer_without_windows_tells_none():
    assert read_hints(PACKAGED["anthropic"], recorded_headers("anthropic/message"), NOW).windows == ()


def test_odd_window_events_tell_nothing(subtests):
    cases = [
        b"",
        b"[]",
        b'{"rate_limits": 7}',
        b'{"rate_limits": {"primary": {"used_percent": -1}}}',
        b'{"rate_limits": {"primary": {"used_percent": 1, "reset_at": 1e300}}}',
        b'{"rate_limits": {"primary": {"used_percent": "much"}}}',
        b'{"rate_limits": {"primary": null}}',
    ]
    for data in cases:
        with subtests.test(data=data):
            assert read_stream_windows(data, NOW) == ()


@given(st.binary(max_size=200))
def test_any_window_event_is_read(data):
    read_stream_windows(data, NOW)


def test_an_odd_status_is_an_oddity():
    headers = {"anthropic-ratelimit-unified-5h-status": "x" * 99, "anthropic-ratelimit-unified-5h-utilization": "0.5"}
    hints = read_hints(PACKAGED["anthropic"], headers, NOW)
    assert hints.windows == (WindowReading("5h", used=0.5),)
    assert len(hints.oddities) == 1
