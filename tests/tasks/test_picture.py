import io

from rich.console import Console

from hivemind_addon.tools.tasks import picture
from hivemind_addon.tools.tasks.model import FleetView, State
from tests.rows import each
from tests.tasks.test_store import view


def fleet(*tasks):
    return FleetView("night-1", "night.yaml", 4, 100.0, None, 7, tasks)


TASKS = (
    view("plan", State.DONE, began_wall=100.0, ended_wall=112.0, attempts=1),
    view("build", State.RUNNING, began_wall=112.0, attempts=2),
    view("parent", State.LENDING, began_wall=112.0, attempts=1),
    view("test", State.FAILED, began_wall=112.0, ended_wall=113.0, attempts=1, reason="exit status 3: [red] no"),
    view("report", reason="waits for test"),
)


@each("width", [80, 160])
def test_a_table_fits_and_says_who_does_what_and_why(width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(picture.table_of(fleet(*TASKS), 140.0))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "night-1: 1 done, 1 failed, 1 running, 1 lending, 1 waiting in 40s, at most 4 at once" in text.replace(
        " \n", " "
    )
    for words in (
        "build",
        "running",
        "28s",
        "exit status 3: [red] no",
        "waits for its own tasks",
        "waits for test",
    ):
        assert words in text


def test_where_not_all_fit_those_are_shown_that_say_most():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(picture.table_of(fleet(*TASKS), 140.0, rows=2))
    text = console.export_text()
    assert "build" in text
    assert "plan" not in text
    assert "and 3 more" in text


@each(
    ("task", "line"),
    [
        (TASKS[0], "night-1/plan  done  after 12s"),
        (TASKS[1], "night-1/build  running  try 2"),
        (TASKS[3], "night-1/test  failed  after 1s: exit status 3: [red] no"),
        (TASKS[4], "night-1/report  waiting: waits for test"),
    ],
)
def test_a_change_is_one_line(task, line):
    assert picture.change(task, 140.0) == line


def test_the_end_is_one_line():
    assert picture.summary(fleet(TASKS[0]), 223.0) == "1 done in 2m03s"
    assert picture.counts(fleet()) == "no tasks"
