from hivemind_addon.kernel.values.snapshot import AccountBlockView, LimitNeed, MeterView, WindowView
from hivemind_addon.kernel.values.ticket import Reason
from hivemind_addon.proxy.api.pool_words import (
    meter_words,
    pool_line,
    pool_state,
    queue_words,
    waiting_line,
    why_words,
    window_words,
)
from hivemind_addon.proxy.api.words import ordinal
from tests.tools.dash.samples import KEY, pool, waiting

STATES = (
    ({}, "idle"),
    ({"queued": 1}, "busy"),
    ({"in_flight": 1}, "busy"),
    ({"paused": True, "breaker": "open"}, "paused by a person"),
    (
        {"account_block": AccountBlockView("five hours", 7200), "breaker": "open"},
        "the account's limit is spent, for 2 h 0 min: five hours",
    ),
    (
        {"account_block": AccountBlockView("five hours", 0)},
        "the account's limit is spent, and tried again now: five hours",
    ),
    ({"breaker": "open", "breaker_tries_in_s": 9.0, "blocked_for_s": 5.0}, "provider down, one request tries in 9 s"),
    ({"breaker": "open"}, "provider down"),
    ({"breaker": "half-open"}, "provider down, one request is trying"),
    ({"blocked_for_s": 20.0}, "told to wait 20 s"),
)


def test_the_hardest_of_what_keeps_a_pool_is_its_state():
    assert [pool_state(pool(**changes)) for changes, _ in STATES] == [words for _, words in STATES]


def test_a_pool_in_a_line_has_all_that_keeps_it():
    held = pool(in_flight=3, cap=4, queued=7, paused=True, blocked_for_s=20.0, tickets=(waiting(starts_in_s=3.2),))
    assert pool_line(held) == (
        f"{KEY}: 3 of 4 in flight, capped at 4 by a person, 7 queued (rate limit, in about 4 s), "
        "paused by a person, told to wait 20 s"
    )
    line = pool_line(pool(in_flight=4, maximum_from="ulimit -n, now 256"))
    assert line == f"{KEY}: 4 of 4 in flight, our maximum: raise ulimit -n, now 256, 0 queued"
    assert pool_line(pool()) == f"{KEY}: 0 of 4 in flight, 0 queued"
    assert queue_words(pool(queued=1200, tickets=(waiting(),))) == "1,200 queued (rate limit)"


def test_what_is_left_of_limits():
    assert meter_words(MeterView("requests", "bucket", 50, 40, 12.0)) == ("40 of 50", "full in 12 s")
    assert meter_words(MeterView("input-tokens", "bucket", 450_000, 450_000, 0)) == ("450k of 450k", "full")
    assert window_words(WindowView("5h", 0.62, "allowed", 8280.0, None)) == ("62% used", "anew in 2 h 18 min")
    assert window_words(WindowView("7d", None, "", None, None)) == ("unknown", "")


def test_who_waits_names_the_limit_that_decides():
    def words(reason=Reason.METER, detail="", **limit):
        return why_words(reason, LimitNeed(**limit) if limit else None, detail)

    assert words() == "rate limit"
    assert words(Reason.FUNDS, "group night") == "its budget is reserved by running requests: group night"
    assert words(name="input-tokens", needs=7100, left=3900, of=40_000) == "input tokens: needs 7.1k, 3.9k left"
    assert words(name="input_tokens", needs=7100, left=3900, before=2) == "input tokens: needs 7.1k, 3.9k left"
    assert words(name="requests", needs=1, left=4.9, before=3) == "requests: needs 1, 4 left, after 3 others"
    assert words(name="requests", needs=1, left=0.97) == "requests: needs 1, 0 left", "nobody goes with a part"
    assert words(name="concurrency", needs=1, left=0, of=4) == "concurrency limit: 4 of 4 in flight"
    behind = words(name="concurrency", needs=1, left=0, of=4, before=1)
    assert behind == "concurrency limit: 4 of 4 in flight, after 1 other"


def test_a_line_tells_place_limit_and_start():
    why = "input tokens: needs 7.1k, 3.9k left"
    assert waiting_line(1, why, 3.2) == f"1st; {why}, in about 4 s"
    assert waiting_line(3, "paused by a person", None) == "3rd; paused by a person"
    assert [ordinal(number) for number in (1, 2, 11, 12, 13, 22, 103, 1004)] == [
        *("1st", "2nd", "11th", "12th", "13th", "22nd", "103rd", "1,004th")
    ]
