from msgspec.structs import replace

from hivemind_addon.api.report import LimitMove, Sample
from hivemind_addon.api.snapshot import LearnedView, MeterView, WallView, WindowView
from hivemind_addon.api.ticket import PoolKey
from hivemind_addon.tools.dash.pools import pools
from tests.dash.samples import KEY, pool, pool_tally, report


def drawn(*made, width=120, tallies=()):
    """The text of each pool."""
    return [
        "\n".join(line.plain for line in (one.head, *one.more)) for one in pools(report(*made, tallies=tallies), width)
    ]


def test_a_pool_shows_what_runs_against_its_limit_and_what_waits():
    history = tuple(Sample(ago_s=10.0 * n, queued=n, in_flight=n, limit=4) for n in range(4))
    tally = pool_tally(history=history, wait_p50_s=2, wait_p95_s=130)
    (text,) = drawn(pool(in_flight=3, queued=14), tallies=[tally])
    for words in ("api.test/key-1/large", "3 of 4 in flight", "14 queued", "▃▆█", "waits p50 2 s, p95 3 min"):
        assert words in text


def test_every_limit_has_its_level_and_its_end():
    meters = (
        MeterView("requests", "window", limit=50, level=5, full_in_s=40),
        MeterView("input-tokens", "bucket", limit=450_000, level=450_000, full_in_s=0),
    )
    windows = (WindowView("5h", 0.62, "allowed", 8_280.0, 18_000.0), WindowView("7d", None, "rejected", None, None))
    (text,) = drawn(pool(meters=meters, windows=windows))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1] == "requests ━─────────── 5 of 50 full in 40 s input-tokens ━━━━━━━━━━━━ 450k of 450k full"
    assert "62% used anew in 2 h 18 min" in lines[2]
    assert lines[2].endswith("7d ━━━━━━━━━━━━ unknown rejected")


def test_what_keeps_a_pool_is_said_and_has_a_sign():
    cases = {
        "‖": pool(paused=True),
        "!": pool(wall=WallView("spent", 60)),
        "●": pool(in_flight=1),
        "·": pool(),
    }
    for sign, made in cases.items():
        assert f"api.test/key-1/large  {sign} " in drawn(made)[0]
    (text,) = drawn(pool(breaker="open", breaker_tries_in_s=4, blocked_for_s=12, cap=3, bypassing=2))
    for words in (
        "api.test/key-1/large  !",
        "breaker open, tries in 4 s",
        "provider asks to wait 12 s",
        "capped at 3 by a person",
        "2 past the scheduler",
    ):
        assert words in text


def test_what_was_learned_and_how_the_limit_moved_is_there():
    moves = (LimitMove(12, 10, "200"), LimitMove(40, 8, "529"), LimitMove(400, 9, "529"))
    (text,) = drawn(
        pool(learned=(LearnedView("ceiling", "12 at a time"),)),
        tallies=[pool_tally(moves=moves, retries_absorbed=7, throttled=3)],
        width=160,
    )
    for words in (
        "learned 12 at a time",
        "limit 8 → 10 12 s ago (200)",
        "limit 9 → 8 40 s ago",
        "7 retries",
        "3 refused",
    ):
        assert words in text
    assert "→ 9" not in text, "that was long ago"


def test_the_busiest_pool_is_first():
    other = PoolKey("b.test", "key-1", "m")
    assert [one.key for one in pools(report(pool(), pool(other, queued=1)), 80)] == [other, KEY]


def test_a_pool_is_named_by_the_whole_name_that_commands_take():
    key = PoolKey("api.anthropic.com", "key-a42978c3aba7", "claude-sonnet-4*")
    assert str(key) in drawn(pool(key=key), width=100)[0]


def test_names_are_no_control_characters_and_leave_columns_where_they_are():
    wild = PoolKey("日本語\x1b[2J", "k", "m" * 90)
    made = pools(report(pool(), pool(wild)), 80)
    assert len({one.head.plain.index(" of 4 in flight") for one in made if "日" not in one.head.plain}) == 1
    assert all("\x1b" not in one.head.plain and one.head.cell_len <= 80 for one in made)


def test_a_limit_of_several_pools_is_shown_once_and_all_of_them_say_with_whom():
    shared = MeterView("requests", "window", limit=50, level=5, full_in_s=40, shared_by=("large", "small"))
    keys = [replace(KEY, model_group=group) for group in ("large", "small")]
    first, second = drawn(*(pool(key, queued=9 - number, meters=(shared,)) for number, key in enumerate(keys)))
    assert "5 of 50" in first
    assert "requests shared with small" in first
    assert "5 of 50" not in second
    assert "requests shared with large" in second
