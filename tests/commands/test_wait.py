"""When would my next call be sent: what is asked, and how it is told."""

import json

import msgspec
import pytest
from click.testing import CliRunner

from hivemind_addon.api.command import ForeseeWait, Said, WaitView
from hivemind_addon.tools.cli import main
from tests.commands.served import serving
from tests.dash.samples import report

pytestmark = pytest.mark.usefixtures("folders")
VIEWS = [
    WaitView("api.test/k/large", 34.2, 4, "rate limit"),
    WaitView("api.test/k/small", 0.0, 0, ""),
    WaitView("b.test/k/m", None, 0, "paused by a person"),
    WaitView("c.test/k/m", None, 0, ""),
    WaitView("d.test/k/m", 2.0, 0, "concurrency limit"),
]


def told(*views):
    return lambda _: Said(done=True, text="in words", value=msgspec.to_builtins(views))


def run(*arguments, **environment):
    return CliRunner().invoke(main, ["wait", *arguments], env=environment)


def test_one_line_a_pool():
    with serving(report(), answer=told(*VIEWS)) as asked:
        result = run("me", "--pool", "*.test", "--session", "s", "--input-tokens", "900", "--output-tokens", "7")
    assert asked == [ForeseeWait("me", session="s", pool="*.test", input_tokens=900, output_tokens=7)]
    assert result.stdout.splitlines() == [
        "api.test/k/large: in about 35 s: rate limit, 4 requests before it",
        "api.test/k/small: at once",
        "b.test/k/m: nobody can tell when: paused by a person",
        "c.test/k/m: nobody can tell when",
        "d.test/k/m: in about 2 s: concurrency limit",
    ]


def test_programs_get_numbers():
    with serving(report(), answer=told(VIEWS[0])):
        assert json.loads(run("me", "--json").stdout) == [
            {"pool": "api.test/k/large", "starts_in_s": 34.2, "before": 4, "reason": "rate limit"}
        ]
        assert run("me", "--csv").stdout.splitlines()[1] == "api.test/k/large,34.2,4,rate limit"


def test_inside_of_an_agent_it_is_the_agent_that_is_meant():
    with serving(report(), answer=told(VIEWS[1]), port=9090) as asked:
        assert run(HIVEMIND_AGENT="reviewer", HIVEMIND_PORT="9090").exit_code == 0
    assert asked == [ForeseeWait("reviewer")]
    result = run()
    assert result.exit_code == 2
    assert "Missing argument 'AGENT'" in result.stderr


def test_where_nothing_is_known_yet_the_proxy_says_so():
    with serving(report(), answer=told()):
        assert run("me").stdout == "in words\n"


def test_what_the_proxy_refuses_is_an_error():
    with serving(report(), answer=lambda _: Said(done=False, text="no pool 'x'; there are y")):
        result = run("me", "--pool", "x")
    assert (result.exit_code, result.stderr) == (1, "Error: no pool 'x'; there are y\n")
