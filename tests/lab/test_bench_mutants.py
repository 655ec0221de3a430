import ast

from lab.bench.mutants import mutants_of

SOURCE = b'''"""A docstring is no place for a mutant."""

LIMIT = 3


def grow(size: int, *, by: int = 1) -> int:
    """Nor is this one."""
    if size < LIMIT and not by:  # h\xc3\xa9
        raise ValueError("too small")
    return size + by
'''


def changed(source: bytes) -> list[tuple[int, str, str]]:
    """Line, operator and the changed line of each mutant."""
    made = []
    for mutant in mutants_of("x.py", source):
        after = mutant.apply(source)
        ast.parse(after)
        line = after.splitlines()[mutant.start[0] - 1].decode().strip()
        made.append((mutant.start[0], mutant.what, line))
    return made


def test_each_mutant_changes_one_place_exactly():
    head, comment = "if {}:", "  # h\u00e9"
    told = {
        (3, "constant", "LIMIT = 4"),
        (3, "constant", "LIMIT = (2)"),
        (6, "constant", "def grow(size: int, *, by: int = 2) -> int:"),
        (6, "constant", "def grow(size: int, *, by: int = (0)) -> int:"),
        (8, "and / or", head.format("(size < LIMIT or not by)") + comment),
        (8, "branch always", head.format("True") + comment),
        (8, "branch never", head.format("False") + comment),
        (8, "not added", head.format("(not (size < LIMIT and (not by)))") + comment),
        (8, "comparison swapped", head.format("(size <= LIMIT) and not by") + comment),
        (8, "not removed", head.format("size < LIMIT and (by)") + comment),
        (9, "statement deleted", "pass"),
        (10, "returns None", "return None"),
        (10, "arithmetic", "return (size - by)"),
    }
    assert set(changed(SOURCE)) == told


def test_what_is_executed_at_import_belongs_to_no_line():
    assert {mutant.first_line for mutant in mutants_of("x.py", SOURCE)} == {0, 8, 9, 10}


def test_what_only_people_see_is_left_alone():
    source = b'def f(x: list[1]):\n    """Words."""\n    assert x > 1\n    return f"{x + 1}"\n\ndef __repr__(self):\n    return "x" * 3\n'
    assert changed(source) == [(4, "returns None", "return None")]
