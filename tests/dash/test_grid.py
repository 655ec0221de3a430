from hivemind_addon.tools.dash.grid import Column, Grid, GridCell

COLUMNS = (Column("name", 0, 6, grows=1), Column("a", 2, 4, right=True), Column("b", 1, 4))


def shown(width, **cells):
    (line,) = Grid(COLUMNS, width).rows([{title: GridCell(text) for title, text in cells.items()}])
    return line.plain


def test_columns_have_the_same_place_in_every_row():
    assert Grid(COLUMNS, 20).heading().plain == "name       a  b   "[:8].ljust(8) + "     a  b   "
    assert shown(20, name="x", a="1", b="y") == "x            1  y   "
    assert shown(20, a="12345") == "          123…      "


def test_what_does_not_fit_goes_by_rank():
    assert shown(12, name="x", a="1", b="y") == "x       y   "
    assert shown(6, name="x", a="1", b="y") == "x     "


def test_no_line_is_wider_than_its_screen():
    assert all(len(shown(width, name="n" * 70, a="a" * 70, b="b" * 70)) <= width for width in range(1, 60))


def test_it_tells_which_columns_there_are():
    grid = Grid(COLUMNS, 12)
    assert (grid.width_of("name"), grid.width_of("b"), grid.width_of("a")) == (6, 4, 0)
