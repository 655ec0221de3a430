import pytest

from hivemind_addon.api.ticket import Dimension, PoolKey
from hivemind_addon.lab.replay.limits import BadLimit, GivenLimit, given_limit, imposed, in_words
from hivemind_addon.lab.sim.limits import Limit, LimitKind
from tests.cases import over

POOL = PoolKey("api.anthropic.com", "key-1", "claude")


@over(
    ("text", "dimension", "amount", "window_s", "kind"),
    [
        ("requests=60/min", Dimension.REQUESTS, 60, 60, LimitKind.BUCKET),
        ("input_tokens=450k/min", Dimension.INPUT_TOKENS, 450_000, 60, LimitKind.BUCKET),
        ("output-tokens=90K/MIN:window", Dimension.OUTPUT_TOKENS, 90_000, 60, LimitKind.WINDOW),
        ("total_tokens=1.5M/day:bucket", Dimension.TOTAL_TOKENS, 1_500_000, 86_400, LimitKind.BUCKET),
        ("requests=1/30s", Dimension.REQUESTS, 1, 30, LimitKind.BUCKET),
        ("requests=none", Dimension.REQUESTS, None, 60, LimitKind.BUCKET),
        ("concurrency=5", None, 5, 60, LimitKind.BUCKET),
    ],
)
def test_a_limit_is_read_as_people_type_it(text, dimension, amount, window_s, kind):
    assert given_limit(text) == GivenLimit(text, dimension, amount, window_s, kind)


@over(
    ("text", "cure"),
    [
        ("requests", "write requests=60/min"),
        ("requests=60", "does not say per what; write requests=60/min"),
        ("tokens=5/min", "there are requests, input_tokens, output_tokens, total_tokens, concurrency"),
        ("requests=0/min", "requests=none takes the limit away"),
        ("concurrency=5/min", "write concurrency=5"),
        ("requests=60/fortnight", "write requests=60/min"),
        ("requests=5/0s", "a window of no length"),
        ("", "write requests=60/min"),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused_with_its_cure(text, cure):
    with pytest.raises(BadLimit) as refusal:
        given_limit(text)
    assert cure in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_given_replaces_all_that_was_recorded_of_its_kind():
    recorded = (Limit(Dimension.REQUESTS, 50), Limit(Dimension.REQUESTS, 1, 1.0), Limit(Dimension.INPUT_TOKENS, 9))
    given = [given_limit("requests=7/min:window"), given_limit("concurrency=3")]
    limits, concurrency = imposed(recorded, None, given, POOL)
    assert limits == (Limit(Dimension.INPUT_TOKENS, 9), Limit(Dimension.REQUESTS, 7, 60, LimitKind.WINDOW))
    assert concurrency == 3


def test_a_limit_may_be_for_some_pools_only():
    given = [given_limit("concurrency=3@*openai*"), given_limit("requests=none@*anthropic*")]
    assert imposed((Limit(Dimension.REQUESTS, 50),), 9, given, POOL) == ((), 9)


@over("text", ["requests=60/min:bucket", "input_tokens=450k/min:window", "requests=1/30s:bucket"])
def test_a_limit_in_words_is_what_would_be_typed(text):
    given = given_limit(text)
    limit = Limit(given.dimension, given.amount, given.window_s, given.kind)
    assert in_words(limit) == text
