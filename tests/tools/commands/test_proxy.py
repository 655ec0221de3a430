"""Which proxy a command talks to, and what is said when there is none."""

import click
import pytest

from hivemind_addon.kernel.values.command import Pause
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.proxy.api.control import control_socket, serving_ports
from hivemind_addon.tools.commands.proxy import ask, in_one_line, no_proxy, report_of, typed
from tests.tools.commands.served import serving
from tests.tools.dash.samples import report

pytestmark = pytest.mark.usefixtures("folders")


def test_it_is_read_and_asked():
    with serving(report(), port=9090) as asked:
        assert report_of(9090).proxy.port == 8080
        assert ask(9090, Pause()) == CommandReply(done=True, text="did Pause(pool='*', person='')")
    assert asked == [Pause()]


@pytest.mark.parametrize("reach", [report_of, lambda port: ask(port, Pause())])
def test_where_none_runs_the_way_to_start_one_is_told(reach):
    with pytest.raises(click.ClickException) as told:
        reach(9090)
    assert told.value.message == "no proxy serves port 9090; start it with `hivemind run -p 9090`"


@pytest.mark.parametrize("reach", [report_of, lambda port: ask(port, Pause())])
def test_where_another_port_has_one_it_is_named(reach):
    with serving(report(), port=9090), pytest.raises(click.ClickException) as told:
        reach(8080)
    assert told.value.message == "no proxy serves port 8080; one serves port 9090: add `-p 9090`"


def test_only_ports_that_answer_are_named():
    control_socket(7000).touch()
    (control_socket(7000).parent / "mine.sock").touch()
    with serving(report(), port=9090), serving(report(), port=9091):
        assert serving_ports() == [9090, 9091]
        assert no_proxy(8080).message == ("no proxy serves port 8080; there are some on 9090, 9091: add `-p 9090`")
    assert serving_ports() == []


class Expected(Exception):
    pass


@in_one_line(Expected)
def fails(error):
    """Says what it does."""
    raise error


def test_what_can_be_expected_is_one_line_each_time():
    for error, line in (
        (Expected("why, and the cure"), "why, and the cure"),
        (PermissionError(13, "Permission denied", "/run/x"), "/run/x: Permission denied"),
        (OSError("told in words"), "told in words"),
    ) * 2:
        with pytest.raises(click.ClickException) as caught:
            fails(error)
        assert caught.value.message == line


@pytest.mark.parametrize("error", [ValueError("a defect"), BrokenPipeError(32, "Broken pipe")])
def test_what_is_not_goes_on(error):
    """A reader that has seen enough is no trouble of ours."""
    with pytest.raises(type(error)):
        fails(error)


def test_a_command_keeps_its_help():
    assert (fails.__name__, fails.__doc__) == ("fails", "Says what it does.")


def test_what_a_person_types_names_the_port_only_where_it_has_to():
    assert (typed("run", 8080), typed("run", 9090)) == ("hivemind run", "hivemind run -p 9090")
