"""`hivemind run`: a proxy that stays, and nothing that stays behind."""

import getpass
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from hivemind_addon.tools.launch.proxy_command import OLLAMA_PORT
from tests.e2e.machine import machine
from tests.e2e.proxy import PATIENCE_S, free_port
from tests.processes import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("run")]


def listens(port):
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def delivered(mine):
    return mine.report()["snapshot"]["counters"]["delivered"]


def another(report, before):
    """The proxy of a report, if it is not the one before."""
    return report and report["proxy"]["pid"] != before["pid"] and report["proxy"]


def test_it_says_how_to_get_behind_it_and_a_dead_proxy_is_back_with_what_it_had_learned(mine):
    with mine.started("run") as run:
        try_it = f"listening at 127.0.0.1:{mine.port}; try `hivemind exec -p {mine.port} -- claude`\n"
        assert run.stdout.readline().endswith(f"hivemind: {try_it}")
        before = mine.wait_for(mine.report, "the start")["proxy"]
        assert mine.run("exec", "--", *mine.model_call()).returncode == 0

        os.kill(before["pid"], signal.SIGKILL)
        after = mine.wait_for(lambda: another(mine.report(), before), "the return")
        assert after["listens"] == before["listens"] == [f"127.0.0.1:{mine.port}"]
        done = mine.run("exec", "--", *mine.model_call())
        assert '"stop_reason":"end_turn"' in done.stdout, done

        run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE_S) == 0
        assert not is_alive(after["pid"])
        assert not listens(mine.port)
        lines = run.stdout.read().splitlines(keepends=True)
        assert f"the proxy ended (SIGKILL); starting it again on port {mine.port}" in lines[0]
        assert [line for line in lines[1:] if not line.endswith(try_it)] == []  # two calls went, and are no news
    assert mine.report() is None
    assert sorted(path.suffix for path in (mine.home / "hivemind").iterdir()) == [".lock", ".users"]


def test_ctrl_c_ends_it_and_a_second_run_on_the_port_is_refused(mine):
    with mine.started("run") as run:
        proxy = mine.wait_for(mine.report, "the start")["proxy"]
        second = mine.run("run")
        assert (second.returncode, second.stderr) == (
            1,
            f"Error: `hivemind run` serves port {mine.port} already; use that, or choose another with -p\n",
        )
        run.send_signal(signal.SIGINT)
        assert run.wait(PATIENCE_S) == 0
        assert not is_alive(proxy["pid"])


def test_a_bad_option_is_shown_and_not_tried_again_and_nothing_is_announced(mine):
    done = mine.run("run", "--set", "hivemind_profile=x")
    assert done.returncode == 1
    assert "hivemind_profile: no such option; did you mean hivemind_profiles?" in done.stdout + done.stderr
    assert "again" not in done.stdout + done.stderr
    unknown = mine.run("run", "--nonsense")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr == "Error: no such option: --nonsense\n"


def test_a_foreign_program_on_the_port_is_all_that_is_told(mine):
    with socket.create_server(("127.0.0.1", mine.port)):
        taken = mine.run("run", HTTPS_PROXY="http://127.0.0.1:9")
    assert (taken.returncode, taken.stdout) == (1, "")
    told = (
        rf"Error: port {mine.port} is taken by a program that is no proxy of hivemind; choose another port: `-p \d+`\n"
    )
    assert re.fullmatch(told, taken.stderr)


def test_a_proxy_of_another_home_is_named_by_whoever_meets_it(served, anthropic, authority):
    with machine(anthropic, authority) as other:
        other.port = served.port
        for command in (["run"], ["exec", "--", "true"], ["status"]):
            met = other.run(*command)
            assert (met.returncode, met.stdout) == (1, "")
            assert (
                f"taken by the hivemind proxy of user {getpass.getuser()}, home {served.home} (process " in met.stderr
            )


def test_the_environments_proxy_becomes_its_upstream(mine):
    with mine.started("run", "--set", "flow_detail=0", HTTPS_PROXY="http://me:secret@127.0.0.1:9") as run:
        assert mine.wait_for(mine.report, "the start")
        done = mine.run("exec", "--", *mine.model_call("--max-time", "1", "-w", "%{http_code}", "-o", "/dev/null"))
        run.send_signal(signal.SIGTERM)
        run.wait(PATIENCE_S)
        said = run.stdout.read()
    assert "going through http://127.0.0.1:9, as the environment says" in said
    assert "secret" not in said
    assert done.stdout != "200"


def test_bounds_and_an_upstream_are_options_of_its_own(mine):
    bounds = ("--max-concurrency", "2", "--total-budget", "1M", "--agent-budget", "$2")
    with mine.started("run", *bounds, "--upstream", "https://api.anthropic.com/"):
        mine.wait_for(mine.report, "the start")
        call = [
            word.replace("https://api.anthropic.com", f"http://127.0.0.1:{mine.port}") for word in mine.model_call()
        ]
        done = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        snapshot = mine.report()["snapshot"]
    assert '"stop_reason":"end_turn"' in done.stdout, done
    assert [(pool["key"]["host"], pool["limit"]) for pool in snapshot["pools"]] == [("api.anthropic.com", 2)]
    budgets = [one["budget"] for one in snapshot["budgets"]]
    assert {(one["scope"], one["tokens"], one["micro_usd"]) for one in budgets} == {
        ("everyone", 1_000_000, None),
        ("agent", None, 2_000_000),
    }


def test_a_base_url_that_names_the_port_leads_to_the_provider_of_the_path(served):
    before = delivered(served)
    call = [
        word.replace("https://api.anthropic.com", f"http://localhost:{served.port}") for word in served.model_call()
    ]
    done = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert '"stop_reason":"end_turn"' in done.stdout, done
    assert delivered(served) == before + 1


def test_ollama_gets_a_port_of_its_own_to_which_the_same_rules_apply(mine, anthropic, authority):
    with mine.started("run", "--ollama") as run:
        run.stdout.readline()
        line = run.stdout.readline()
        assert line.endswith(f"listening at 127.0.0.1:{OLLAMA_PORT} for http://127.0.0.1:11434\n")
        proxy = mine.wait_for(mine.report, "the start")["proxy"]
        assert proxy["listens"] == [f"127.0.0.1:{mine.port}", f"127.0.0.1:{OLLAMA_PORT}"]
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
            url = f"http://127.0.0.1:{OLLAMA_PORT}/api/tags"
            assert client.get(url, headers={"host": f"evil.test:{OLLAMA_PORT}"}).status_code == 421
        with machine(anthropic, authority) as other:
            second = other.run("run", "--ollama")
        assert (second.returncode, second.stdout) == (1, "")
        assert f"port {OLLAMA_PORT}, which --ollama needs, is taken by the hivemind proxy of user " in second.stderr
        assert f"home {mine.home} (process {proxy['pid']}); use that one's, or leave --ollama out\n" in second.stderr


def test_mitmweb_runs_under_it_too(mine):
    with mine.started("run", "--web", "--no-web-open-browser", "--set", f"web_port={free_port()}") as run:
        proxy = mine.wait_for(mine.report, "the start")["proxy"]
        assert b"mitmweb" in Path(f"/proc/{proxy['pid']}/cmdline").read_bytes()
        told = [run.stdout.readline(), run.stdout.readline()]
        page = re.fullmatch(r".*hivemind: mitmweb is at (http://127\.0\.0\.1:\d+/\?token=\w+)\n", told[1])
        assert page, told
        assert httpx.get(page[1], trust_env=False).status_code == 200  # it lets us in
        run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE_S) == 0


def test_status_shows_people_the_pools(mine):
    with mine.started("run"):
        mine.wait_for(mine.report, "the start")
        assert mine.run("exec", "--agent", "curl-1", "--", *mine.model_call()).returncode == 0
        text = mine.run("status", COLUMNS="120").stdout
        assert re.search(r"1 request · 1 delivered", " ".join(text.split())), text
        assert "api.anthropic.com" in text
        assert mine.report()["snapshot"]["counters"]["delivered"] == 1
    nobody = mine.run("status")
    assert nobody.returncode == 1
    assert nobody.stderr == f"Error: no proxy serves port {mine.port}; start it with `hivemind run -p {mine.port}`\n"


def test_env_prints_what_a_shell_can_read(served):
    printed = served.run("env", "--agent", "it's me", "--priority", "low").stdout
    script = printed + 'printf "%s" "$https_proxy"; ' + " ".join(f"'{word}'" for word in served.model_call())
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=served.environment, timeout=PATIENCE_S, check=False
    )
    assert f"http://it%27s%20me:prio-low@127.0.0.1:{served.port}" in done.stdout
    assert '"stop_reason":"end_turn"' in done.stdout, done
