import sys
from urllib.parse import unquote, urlsplit

import pytest
from msgspec.structs import replace

from hivemind_addon.formats.wire.proxy_user import proxy_words
from hivemind_addon.kernel.values.command import SetBudget
from hivemind_addon.kernel.values.spend import Period, Scope
from hivemind_addon.plugins.fleets.tasks import launcher as launchers
from hivemind_addon.plugins.fleets.tasks.launcher import Launcher
from hivemind_addon.plugins.fleets.tasks.model import TaskSpec
from hivemind_addon.plugins.fleets.tasks.process import TaskNotStarted
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.proxy.api.control import CommandUnanswered
from hivemind_addon.proxy.api.report import ProxyView
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.launch import agent_environment, background
from hivemind_addon.tools.launch.programs import load_programs
from tests.cases import each

PROXY = ProxyView(pid=7, port=9090, listens=("127.0.0.1:9090",), confdir="/c", hosts=("api.anthropic.com",))


@pytest.fixture
def launcher(monkeypatch, tmp_path):
    monkeypatch.setattr(background, "find_or_start", lambda *_, **__: PROXY)
    monkeypatch.setattr(agent_environment, "write_bundle", lambda *_: "/b.pem")
    monkeypatch.setattr(launchers, "control_socket", lambda port: tmp_path / f"{port}.sock")
    return Launcher(9090, table=load_programs(), clock=SystemClock(), socket=tmp_path / "r.sock")


async def test_a_task_is_known_to_the_proxy_and_knows_itself(launcher, tmp_path):
    spec = TaskSpec(command=("make",), priority="low", environment={"A": "task's", "HIVEMIND_TASK": "forged"})
    base = {"A": "runner's", "HTTPS_PROXY": "http://parent:x@127.0.0.1:9090", "HIVEMIND_AGENT": "parent"}
    command, environment = await launcher.launch("night-1/a", spec, base, {"HIVEMIND_RESULT_B": "/b.txt"})
    assert command == ["make"]
    url = urlsplit(environment["HTTPS_PROXY"])
    assert unquote(url.username) == environment["HIVEMIND_AGENT"] == "night-1.a"
    assert unquote(url.password) == "whole.prio-low.task-night-1/a"
    assert proxy_words(unquote(url.password)).priority.name == "LOW"
    assert (environment["A"], environment["HIVEMIND_RESULT_B"]) == ("task's", "/b.txt")
    assert (environment["HIVEMIND_TASK"], environment["HIVEMIND_PORT"]) == ("night-1/a", "9090")
    assert environment["HIVEMIND_RUNNER"] == str(tmp_path / "r.sock")


async def test_a_task_gets_nothing_that_is_the_proxys_alone(launcher, monkeypatch):
    holder = replace(PROXY, key_variables=("OPENAI_API_KEY",))
    monkeypatch.setattr(background, "find_or_start", lambda *_, **__: holder)
    base = {"HIVEMIND_CLUSTER_PASSWORD": "hush", "HIVEMIND_ALERTS": "ntfy://hush", "OPENAI_API_KEY": "sk-hush"}
    spec = TaskSpec(command=("make",), environment={"HIVEMIND_CLUSTER_SECRET": "hush"})
    _, environment = await launcher.launch("night-1/a", spec, base, {})
    assert not [name for name, value in environment.items() if "hush" in value]
    assert environment["OPENAI_API_KEY"] == "held-by-hivemind"


async def test_an_agent_gets_its_prompt_and_what_makes_it_patient(launcher, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    command, environment = await launcher.launch("night-1/a", TaskSpec(agent="codex", prompt="fix -it"), {}, {})
    assert command[0] == "codex"
    assert command[-2:] == ["--", "fix -it"]
    assert 'model_provider="hivemind"' in command
    assert "wait-" in environment["HTTPS_PROXY"]


async def test_a_budget_is_set_before_anything_is_spent(launcher, monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr(
        launchers, "send_command", lambda path, one: told.append((path, one)) or CommandReply(True, "set")
    )
    await launcher.launch("night-1/a", TaskSpec(command=("x",), budget_tokens=5000, budget_usd=0.25), {}, {})
    assert told == [
        (tmp_path / "9090.sock", SetBudget(Scope.AGENT, "night-1.a", Period.RUN, tokens=5000, micro_usd=250_000))
    ]


@each("answer", [CommandReply(False, "no such thing"), CommandUnanswered("no such thing")])
async def test_a_task_whose_budget_cannot_be_set_is_not_started(launcher, monkeypatch, answer):
    def send(*_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(launchers, "send_command", send)
    with pytest.raises(TaskNotStarted, match="its budget could not be set: no such thing"):
        await launcher.launch("night-1/a", TaskSpec(command=("x",), budget_tokens=1), {}, {})


async def test_no_proxy_is_one_line(launcher, monkeypatch):
    def refuse(*_, **__):
        raise background.NotServed("the proxy does not start")

    monkeypatch.setattr(background, "find_or_start", refuse)
    with pytest.raises(TaskNotStarted, match="the proxy does not start"):
        await launcher.launch("night-1/a", TaskSpec(command=(sys.executable,)), {}, {})


async def test_with_the_secret_of_an_agent_a_task_is_that_agent_and_has_no_budget_of_its_own(launcher):
    base = {"HIVEMIND_AGENT": "ann", "HIVEMIND_AGENT_SECRET": "s3cret"}
    _, environment = await launcher.launch("night-1/a", TaskSpec(command=("make",)), base, {})
    url = urlsplit(environment["HTTPS_PROXY"])
    assert (url.username, unquote(url.password)) == ("ann", "s3cret.whole.prio-normal.task-night-1/a")
    with pytest.raises(TaskNotStarted, match="it runs as ann"):
        await launcher.launch("night-1/a", TaskSpec(command=("make",), budget_tokens=1), base, {})
    with pytest.raises(TaskNotStarted, match="--agent NAME"):
        await launcher.launch("night-1/a", TaskSpec(command=("make",)), {"HIVEMIND_AGENT_SECRET": "s3cret"}, {})
