"""The decision digest: what changes a hash, what does not, and what it says."""

import platform
import re
from enum import Enum

import msgspec
import pytest
from click.testing import CliRunner, Result

from hivemind_addon.kernel import retry
from hivemind_addon.kernel.retry import Backoff, GiveUp
from hivemind_addon.kernel.values.ticket import Reason
from hivemind_addon.tools.cli import main
from lab import digest
from lab.digest import Trail, examine, read_known

FIRST, SECOND = "refused-for-good:none", "random-3:as-stated"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["lab", "digest", *arguments])


@pytest.fixture
def at_home(monkeypatch):
    """On whatever platform the tests run, its hashes are the file's."""
    monkeypatch.setattr(digest, "_stranger", lambda: "")


@pytest.fixture
def file(at_home, monkeypatch, tmp_path):
    """Hashes of two worlds, as this platform makes them."""
    monkeypatch.setattr(digest, "_FILE", tmp_path / "digest.json")
    two = {name: digest.worlds()[name] for name in (FIRST, SECOND)}
    monkeypatch.setattr(digest, "worlds", lambda: two)
    assert run("--write").exit_code == 0
    return tmp_path / "digest.json"


def test_the_file_has_every_world():
    assert read_known().keys() == digest.worlds().keys()


def test_the_quick_part_has_some_of_each_family():
    quick = digest._chosen((), quick=True)
    assert 3 * len(quick) >= len(digest.worlds())
    for part in ("random-", ":bucket", ":window", "-no-headers", ":as-stated"):
        assert any(part in name for name in quick)


def test_one_process_and_two_make_the_same():
    alone, together = (digest.examine_all([FIRST, SECOND], workers=workers) for workers in (1, 2))
    assert alone == together


def test_equal_decisions_pass_and_changed_ones_are_described(file, monkeypatch):
    result = run()
    assert (result.exit_code, result.stdout) == (0, "2 worlds: all decisions are equal\n")
    monkeypatch.setattr(retry, "_FIRST_THROTTLED_S", 0.5)
    result = run()
    assert result.exit_code == 1
    line = result.stdout.splitlines()[0]
    assert re.match(
        r"refused-for-good:none: departs after decision \d+ \(\d+\.\d{3} s\) of [\d,]+, now [\d,]+; "
        r".*attempts \d+ → \d+",
        line,
    )
    assert result.stderr.endswith("of 2 worlds differ\nif that is wanted: hivemind lab digest --write\n")


def test_a_run_departs_after_its_last_equal_decision():
    def trail(*instants: float) -> Trail:
        made = Trail()
        for at in instants:
            made.note(at, Backoff(at + 1, "a text"), "ticket")
        return made

    before, after = trail(*range(9)), trail(*range(5), *range(6, 10))
    known, now = before.digest((1.0,)), after.digest((2.0,))
    made = digest.Examined("world", now, [after.instants[place - 1] for place in (1, 2, 3, 4, 6, 9)])
    assert made.difference(known) == "world: departs after decision 4 (3.000 s) of 9, now 9; agents 1 → 2"
    assert made.difference(now) == ""


def test_elsewhere_a_difference_is_a_notice(file, monkeypatch):
    monkeypatch.setattr(digest, "_stranger", lambda: "CPython 3.14 on Darwin, arm64")
    monkeypatch.setattr(retry, "_FIRST_THROTTLED_S", 0.21)
    result = run()
    assert result.exit_code == 0
    assert "of 2 worlds differ\nnotice: no failure, for the hashes hold for CPython 3.12 on Linux" in result.stderr
    assert "this is CPython 3.14 on Darwin, arm64: write hashes with CPython 3.12" in run("--write").stderr


def test_the_hashes_hold_on_their_platform_alone(monkeypatch):
    here = {"python_implementation": "CPython", "system": "Linux", "machine": "x86_64"}
    for name, value in here.items():
        monkeypatch.setattr(platform, name, lambda value=value: value)
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "12", "11"))
    assert not digest._stranger()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert digest._stranger() == "CPython 3.12 on Linux, aarch64"


def test_names_and_texts_are_not_hashed(monkeypatch):
    class Renamed(msgspec.Struct):
        end: float

    class Reworded(Enum):
        DEADLINE = "quite another text"

    monkeypatch.setitem(digest._CODES, Renamed, (6, lambda one: (one.end,)))
    before, after, later = Trail(), Trail(), Trail()
    for trail, fact, reason, ticket in (
        (before, Backoff(2.0, "a text"), Reason.DEADLINE, "ticket-1"),
        (after, Renamed(2.0), Reworded.DEADLINE, "another-id"),
        (later, Renamed(2.001), Reworded.DEADLINE, "another-id"),
    ):
        trail.note(1.0, fact, ticket)
        trail.note(1.5, GiveUp(reason), ticket)
    assert before.digest(()) == after.digest(()) != later.digest(())


def test_figures_alone_may_differ():
    now = examine(SECOND)
    first, *others = now.digest.figures
    before = msgspec.structs.replace(now.digest, hash="", figures=(first + 2, *others))
    assert now.difference(before).endswith(f"; agents {first + 2} → {first}")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: None, "cannot be read: No such file or directory"),
        (lambda file: file.write_text("{"), "is damaged: Input data was truncated"),
        (lambda file: file.write_text('{"a": [1]}'), "is damaged: Expected `str`, got `int`"),
    ],
)
def test_a_missing_or_damaged_file_has_a_cure(damage, words, monkeypatch, tmp_path):
    file = tmp_path / "digest.json"
    monkeypatch.setattr(digest, "_FILE", file)
    damage(file)
    result = run()
    assert result.exit_code == 1
    assert f"{file} {words}" in result.stderr
    assert "restore the file (git checkout" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_world_that_came_or_went_is_named(file):
    known = msgspec.json.decode(file.read_bytes())
    known["zoo:gone"] = known.pop(SECOND)
    file.write_bytes(msgspec.json.encode(known))
    assert run().stdout.splitlines() == [
        f"{SECOND}: no hash is known",
        "zoo:gone: there is a hash, and no such world",
    ]


def test_mistakes_are_refused_with_their_cure(at_home):
    result = run("zoo:unicorn")
    assert result.exit_code == 2
    assert "no world 'zoo:unicorn'; name a scenario (micro-5, latency-spike" in " ".join(result.stderr.split())
    for part in ("--quick", "stress"):
        assert "leave out names and --quick" in run("--write", part).stderr
