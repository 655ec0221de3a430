from hivemind_addon.proxy.api.words import about, brief, count, dollars, failing, lasting, plain, several, short, span

TOLD = {
    lasting: {
        0: "0 min",
        -5: "0 min",
        1: "1 min",
        60: "1 min",
        3_600: "1 h 0 min",
        7_501: "2 h 6 min",
        86_400: "1 d 0 h",
        540_000: "6 d 6 h",
        float("inf"): "unknown",
    },
    about: {-1: "1 s", 0.2: "1 s", 4: "4 s", 10: "10 s", 11: "15 s", 31: "35 s", 55: "55 s", 56: "1 min"},
    span: {-1: "0.0 s", 0.04: "0.0 s", 0.96: "1 s", 99: "99 s", 100: "2 min", 7300: "2 h 2 min"},
    brief: {
        0: "0",
        0.42: "0.4s",
        9.97: "10s",
        59.6: "1m",
        61: "1m01s",
        3600: "1h",
        7800: "2h10m",
        90_000: "1d1h",
    },
    count: {
        0: "0",
        999: "999",
        1000: "1.00k",
        9996: "10.0k",
        12_345: "12.3k",
        999_600: "1.00M",
        2.5e9: "2.50G",
    },
    dollars: {0: "$0.00", 260_000: "$0.26", 131_200_000: "$131.20", 1_234_000_000: "$1.23k"},
    short: {940: "940", 12_345: "12.3k", 450_000: "450k", 4_500_000: "4.5M"},
}


def test_numbers_in_words():
    for worded, examples in TOLD.items():
        assert {number: worded(number) for number in examples} == examples, worded.__name__


def test_a_failure_is_one_line_of_bounded_length():
    assert failing(ValueError("a\n  b")) == "ValueError: a b"
    assert len(failing(ValueError("x" * 1000))) == 200


def test_what_is_no_text_is_replaced_and_the_rest_cut():
    assert plain("a\udcffb") == "a?b"
    assert plain("abc", 2) == "ab"


def test_no_count_is_longer_than_five_characters():
    assert max(len(count(10**exponent * digit)) for exponent in range(20) for digit in (1, 9.994, 9.996, 9.9999)) <= 5


def test_several_are_told_from_one():
    assert [several(number, "call") for number in (0, 1, 1200)] == ["0 calls", "1 call", "1,200 calls"]
