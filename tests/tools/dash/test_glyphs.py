from itertools import product

from rich.cells import cell_len

from hivemind_addon.proxy.api.words import printable
from hivemind_addon.tools.dash.glyphs import bar, cut, cut_middle, sentence, spark


def test_a_bar_is_full_only_when_it_is_full_and_empty_only_when_it_is_empty():
    assert bar(1, 4) == "━━━━"
    assert bar(0, 4) == "────"
    assert bar(0.999, 4) == "━━━╸"
    assert bar(0.001, 4) == "╸───"
    assert bar(0.5, 4) == "━━──"
    assert {len(bar(share / 7, 5)) for share in range(-3, 11)} == {5}


def test_a_sparkline_ends_with_the_newest_and_keeps_its_width():
    assert spark([9, 9, 0, 1, 4, 8], 4) == " ▁▄█"
    assert spark([1], 3) == "  █"
    assert spark([2], 3, most=8) == "  ▂"
    assert spark([], 3) == spark([0, 0, 0], 3) == "   "


def test_names_have_no_control_characters():
    assert printable("a\x1b[2Jb\nc\u202ed") == "a?[2Jb?c?d"


def test_what_is_cut_fits():
    texts = ("abc", "a very long name-17", "日本語の名前です", "")
    for text, width, cutter in product(texts, range(12), (cut, cut_middle)):
        short = cutter(text, width)
        assert cell_len(short) <= width
        assert (short == text) == (cell_len(text) <= width)


def test_names_keep_their_ends():
    assert cut_middle("api.anthropic.com/claude-sonnet", 15) == "api.ant…-sonnet"


def test_a_sentence_leaves_the_least_important_out():
    pieces = [(0, "one", ""), (2, "two", ""), (1, "three", ""), (0, "", "")]
    assert sentence(pieces, 80).plain == "one  two  three"
    assert sentence(pieces, 12).plain == "one  three"
    assert sentence(pieces, 4).plain == "one"
    assert sentence(pieces, 2).plain == "o…"
