import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from hivemind_addon.sim.standalone import AGENTS
from hivemind_addon.tools.cli import main


def ask(url):
    """What the line for curl sends."""
    words = shlex.split(AGENTS["curl"].format(url=url))
    headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
    request = urllib.request.Request(words[1], words[words.index("-d") + 1].encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer), answer.headers


def test_it_serves_until_ctrl_c_and_tells_what_became_of_its_calls():
    command = [Path(sys.executable).with_name("hivemind"), "sim", "--port", "0", "--fault", "502=0", "--limit"]
    with subprocess.Popen([*command, "requests=7/min"], stdout=subprocess.PIPE, text=True) as process:
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        said = process.stdout.readline() + process.stdout.readline()
        answer, headers = ask(url)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        process.wait(timeout=20)
    assert "limits: requests=7/min:bucket\n" in said
    assert "faults: none\n" in said
    assert (answer["type"], headers["anthropic-ratelimit-requests-limit"]) == ("message", "7")
    assert all(f"{name}:" in rest for name in AGENTS)
    assert rest.splitlines()[-1].startswith("1 call, 1 answered, 0 refused for a limit, 0 failed, 0 running, ")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--fault", "99=1"], "unknown fault '99'; known: ok, 400"),
        (["--fault", "502"], "write NAME=SHARE, for example 502=0.1"),
        (["--fault", "502=2"], "1 at most in all"),
        (["--limit", "tokens=4"], "there is no 'tokens'"),
    ],
)
def test_a_slip_is_told_with_its_cure(option, words):
    result = CliRunner().invoke(main, ["sim", *option])
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_start_page_has_the_lines_that_it_prints():
    page = (Path(__file__).parents[2] / "docs" / "start.md").read_text(encoding="utf-8")
    told = {"Claude Code", "OpenCode", "Qwen Code", "aider", "the OpenAI SDK"}
    assert {name for name, line in AGENTS.items() if line.format(url="http://127.0.0.1:8080") in page} == told
