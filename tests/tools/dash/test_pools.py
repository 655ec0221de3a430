from msgspec.structs import replace

from hivemind_addon.kernel.values.snapshot import AccountBlockView, LearnedView, MeterView, WindowView
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.proxy.api.report import LimitMove, Sample
from hivemind_addon.tools.dash.pools import pools
from tests.tools.dash.samples import KEY, pool, pool_tally, report


def drawn(*made, width=120, stats_by_key=()):
    """The text of each pool."""
    return [
        "\n".join(line.plain for line in (one.head, *one.more))
        for one in pools(report(*made, stats_by_key=stats_by_key), width)
    ]


MOVES = (LimitMove(12.0, 10, "200"), LimitMove(40.0, 8, "529"), LimitMove(200.0, 9, "200"), LimitMove(900.0, 7, "x"))
POOLS = {
    "how many tokens go": (
        pool(in_flight=3, queued=14),
        pool_tally(input_tokens_per_minute=123_456.7, output_tokens_per_minute=2_345.6, wait_p50_s=2, wait_p95_s=130),
    ),
    "what runs and waits": (
        pool(in_flight=3, queued=14),
        pool_tally(
            history=tuple(Sample(ago_s=10.0 * n, queued=n, in_flight=n, limit=4) for n in range(4)),
            wait_p50_s=2,
            wait_p95_s=130,
        ),
    ),
    "every limit with its level and its end": (
        pool(
            meters=(
                MeterView("requests", "window", limit=50, level=5, full_in_s=40),
                MeterView("input-tokens", "bucket", limit=450_000, level=450_000, full_in_s=0),
            ),
            windows=(
                WindowView("5h", 0.62, "allowed", 8_280.0, 18_000.0),
                WindowView("7d", None, "rejected", None, None),
            ),
        ),
        None,
    ),
    "paused": (pool(paused=True), None),
    "account refused": (pool(account_block=AccountBlockView("spent", 60)), None),
    "sending": (pool(in_flight=1), None),
    "idle": (pool(), None),
    "all that keeps one": (
        pool(breaker="open", breaker_tries_in_s=4, blocked_for_s=12, cap=3, bypassing=2),
        None,
    ),
    "what was learned, how the limit moved of late": (
        pool(learned=(LearnedView("ceiling", "12 at a time"),)),
        pool_tally(moves=MOVES, retries_absorbed=7, throttled=3),
    ),
}


def test_pools_in_words_and_signs(golden):
    parts = [
        f"# {name}\n\n{drawn(made, width=160, stats_by_key=[stats] if stats else [])[0]}"
        for name, (made, stats) in POOLS.items()
    ]
    golden("pools.txt", "\n\n".join(parts))


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
