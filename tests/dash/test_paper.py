import re
from html import unescape
from xml.etree import ElementTree as ET

from hivemind_addon.tools.dash import paper
from tests.dash.record import IMAGE, image, recorded
from tests.dash.samples import pool, report, waiting


def test_the_picture_of_the_readme_is_fresh():
    """`python -m tests.dash.record` makes it anew. Only its words are compared: the library may draw otherwise."""
    assert words(IMAGE.read_text()) == words(image())


def words(svg):
    return unescape(re.sub(r"<[^>]*>|\s|&#160;", "", svg.partition("<g")[2]))


def test_it_is_well_formed_and_fetches_nothing():
    svg = image()
    ET.fromstring(svg)
    assert "nightly" in svg
    assert "@font-face" not in svg
    assert "https://" not in svg.replace("http://www.w3.org", "").replace("https://www.textualize.io", "")


def test_it_is_as_wide_as_columns_say(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    paper.print_picture(recorded("night"))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) == 200
    assert "\x1b" not in out, "a pipe gets no colours"
    assert "what happened" in out


def test_requests_are_listed_by_their_ids_where_somebody_may_want_to_name_one(capsys):
    paper.print_picture(report(pool(tickets=(waiting("t-17"),))), requests=True)
    out = capsys.readouterr().out
    assert "└ t-17 " in out
    assert "what happened" not in out


def test_only_a_terminal_that_can_is_drawn_on(monkeypatch):
    for term, tty, is_screen in (
        ("xterm-256color", True, True),
        ("xterm", False, False),
        ("dumb", True, False),
        ("", True, False),
    ):
        monkeypatch.setenv("TERM", term)
        for stream in (paper.sys.stdin, paper.sys.stdout):
            monkeypatch.setattr(stream, "isatty", lambda tty=tty: tty)
        assert paper.is_screen() is is_screen
