from dataclasses import replace

import pytest

from hivemind_addon.lab.replay.compare import Unlike, accept, check, expectation_of
from hivemind_addon.proxy.capture.model import Capture, encode
from tests.replay.nights import fleet


@pytest.fixture
def night(tmp_path):
    file = tmp_path / "night.hivemind"
    file.write_bytes(encode(fleet(4, 4)))
    return file


def test_a_missing_expectation_fails_with_the_cure(night):
    with pytest.raises(Unlike, match=r"night.expected.json is missing[^$]*--hivemind-accept"):
        check(night)


def test_what_was_accepted_is_expected(night):
    assert "wrote" in accept(night).change
    assert check(night) == ()
    assert accept(night).change == ""


def test_how_it_is_replayed_is_the_expectations_and_stays(night):
    accept(night)
    file = expectation_of(night)
    file.write_text(file.read_text().replace('"limits": []', '"limits": ["requests=9/min"]'))
    with pytest.raises(Unlike, match="the schedule first differs at"):
        check(night)
    accept(night)
    assert check(night) == ()
    assert '"limits": ["requests=9/min"]' in file.read_text()


def test_an_expectation_that_cannot_be_read_is_named_and_can_be_written_anew(night):
    expectation_of(night).write_text("{}")
    with pytest.raises(Unlike, match=r"night.expected.json: it is no expectation"):
        check(night)
    accept(night)
    assert check(night) == ()


def test_a_limit_that_nobody_understands_names_the_file(night):
    accept(night)
    file = expectation_of(night)
    file.write_text(file.read_text().replace('"limits": []', '"limits": ["nonsense"]'))
    with pytest.raises(Unlike, match=r"night.expected.json: limit 'nonsense' cannot be read"):
        check(night)


def test_a_capture_without_calls_or_that_is_none_fails_in_words(night):
    accept(night)
    night.write_bytes(encode(Capture()))
    with pytest.raises(Unlike, match="holds no call that has ended"):
        check(night)
    night.write_text("hello")
    with pytest.raises(Unlike, match=r"night.hivemind"):
        check(night)


def test_damage_is_told(night):
    night.write_bytes(encode(replace(fleet(4, 4), damage=("the file ends at byte 99",))))
    assert accept(night).told == ("damaged: the file ends at byte 99; what precedes it is replayed",)
