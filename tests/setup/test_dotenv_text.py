import pytest

from hivemind_addon.tools.setup.dotenv_text import put, read, take
from hivemind_addon.tools.setup.model import SetupTrouble


def test_lines_are_read_as_they_are_meant():
    text = "# a comment\nA=1\nexport B = 'two words'\nC=\"x\" \n\nD=y # why\nno line\n"
    assert read(text) == {"A": "1", "B": "two words", "C": "x", "D": "y"}


@pytest.mark.parametrize("value", ["http://a:b@127.0.0.1:8080", "localhost,127.0.0.1,::1", "/a b/c.pem", "x#y", ""])
def test_what_is_put_in_is_there_and_taken_out_again(value):
    text = "A=1 # mine\n"
    changed = put(text, ("NEW",), value)
    assert read(changed) == {"A": "1", "NEW": value}
    assert take(changed, ("NEW",)) == text


def test_a_file_without_an_end_of_line_gets_one():
    assert put("A=1", ("B",), "2") == "A=1\nB=2\n"


def test_what_a_line_cannot_hold_is_refused():
    with pytest.raises(SetupTrouble):
        put("", ("A",), "a\nb")
