"""No commit makes the code larger than the budgets in pyproject.toml, and one that makes it smaller lowers them."""

import pytest

from lab import budgets


def test_sizes_counts_and_words_are_within_their_budgets():
    assert budgets.complaints(budgets.static_measures(), budgets.budgets()) == []


@pytest.mark.slow
def test_what_mitmdump_loads_and_the_way_of_a_request_are_within_their_budgets():
    assert budgets.complaints(budgets.running_measures(), budgets.budgets()) == []


def test_a_measure_above_its_budget_far_below_it_or_without_one_is_named():
    allowed = {"lines.kernel": 1000.0, "lines.tools": 1000.0, "counts.dependencies": 20.0, "words.kernel.it": 12.0}
    measures = {"lines.kernel": 1001.0, "lines.tools": 899.0, "counts.dependencies": 18.0, "words.kernel.it": 11.4}
    above, below, counts, missing = budgets.complaints({**measures, "lines.sim": 1.0}, allowed)
    assert above == "lines.kernel: 1,001.0 is above the budget of 1,000: make it smaller"
    assert below.startswith("lines.tools: 899.0 is far below")
    assert counts.startswith("counts.dependencies")
    assert missing.startswith("lines.sim: 1.0 has no budget")
    assert budgets.complaints({"lines.kernel": 901.0, "words.kernel.it": 11.4}, allowed) == []


def test_cycles_are_the_sets_of_files_that_reach_each_other():
    graph = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": [], "e": ["f"], "f": ["e", "a"]}
    assert budgets.import_cycles(graph) == [{"a", "b", "c"}, {"e", "f"}]


def test_tokens_and_words_leave_out_what_is_no_code_and_no_docstring():
    source = budgets.Source(budgets.ROOT, '"""It does."""\n\n# a comment\nx = f(1)  # it\n"""What it is."""\n')
    assert source.tokens() == 6
    assert source.words() == {"it": 2, "does": 1, "what": 1, "is": 1}
