import io

from rich.console import Console

from hivemind_addon.plugins.fleets.tasks import picture
from hivemind_addon.plugins.fleets.tasks.model import FleetView, State
from tests.plugins.fleets.tasks.test_store import view


def fleet(*tasks):
    return FleetView("night-1", "night.yaml", 4, 100.0, None, 7, tasks)


TASKS = (
    view("plan", State.DONE, began_wall=100.0, ended_wall=112.0, attempts=1),
    view("build", State.RUNNING, began_wall=112.0, attempts=2),
    view("parent", State.LENDING, began_wall=112.0, attempts=1),
    view("test", State.FAILED, began_wall=112.0, ended_wall=113.0, attempts=1, reason="exit status 3: [red] no"),
    view("report", reason="waits for test"),
)


def printed(width, *tasks, **more):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(picture.table_of(fleet(*tasks), 140.0, **more))
    return console.export_text()


def test_people_see_who_does_what_and_why(golden):
    parts = [printed(width, *TASKS) for width in (80, 160)]
    for width, text in zip((80, 160), parts, strict=True):
        assert max(map(len, text.splitlines())) <= width
    parts += [printed(80, *TASKS, rows=2), "\n".join(picture.change(task, 140.0) for task in TASKS)]
    parts += [picture.summary(fleet(TASKS[0]), 223.0), picture.counts(fleet())]
    golden("fleet.txt", "\n\n".join(parts))
