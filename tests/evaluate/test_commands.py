"""`hivemind evaluate`, as people type it."""

import dataclasses
import json

import pytest
from click.testing import CliRunner

from hivemind_addon.lab.evaluate import campaign, commands, peer, sockets
from hivemind_addon.lab.sim.library import cases
from hivemind_addon.tools.cli import main

PLAN = campaign.CampaignPlan((cases()["micro-5"],), seeds=1, ablation_seeds=1, ablated=(), paired=())


@pytest.fixture
def small(monkeypatch):
    """The plan of every evaluation is a small one."""
    monkeypatch.setattr(campaign, "quick_plan", lambda _: PLAN)
    monkeypatch.setattr("signal.signal", lambda *_: None)


def evaluate(*words):
    return CliRunner().invoke(main, ["evaluate", *words])


def test_a_quick_evaluation_writes_everything_and_the_same_again(tmp_path, small):
    result = evaluate("--quick", "--out", str(tmp_path / "one"))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        str(tmp_path / "one" / name) for name in ("report.md", "report.html", "results.json", "evaluation")
    ]
    assert "`hivemind evaluate --quick`" in (tmp_path / "one" / "report.md").read_text()
    pictures = sorted(file.name for file in (tmp_path / "one" / "evaluation").iterdir())
    assert pictures == sorted(
        f"{name}.{kind}" for name in ("lost", "refused", "waste", "stretch", "waits") for kind in ("svg", "png")
    )
    evaluate("--quick", "--out", str(tmp_path / "two"))
    for name in ("report.md", "report.html", "results.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_without_the_peer_the_rest_goes_on(tmp_path, small, monkeypatch):
    def install():
        raise peer.PeerUnavailable("hivemind-scheduler 0.2.0 cannot be installed: no network")

    asked = []

    def run_on_sockets(*, peer, done):
        asked.append(peer)
        return []

    monkeypatch.setattr(peer, "install", install)
    monkeypatch.setattr(sockets, "run_on_sockets", run_on_sockets)
    result = evaluate("--quick", "--peer", "--out", str(tmp_path))
    assert result.exit_code == 0
    assert result.stderr == "hivemind-scheduler 0.2.0 cannot be installed: no network; the rest goes on\n"
    assert asked == [False]
    assert json.loads((tmp_path / "results.json").read_bytes())["peer_problem"]


def test_the_command_is_written_down_as_it_was_given():
    assert commands._command(quick=False, real=True, peer=True, seeds=5) == "hivemind evaluate --real --peer --seeds 5"


def test_the_quick_evaluation_tells_the_scheduler_from_the_rest(tmp_path, monkeypatch):
    """What its short form promises, of which pairs are no part: tests/evaluate/test_findings.py has those."""
    plan = dataclasses.replace(campaign.quick_plan(1), paired=())
    monkeypatch.setattr(campaign, "quick_plan", lambda _: plan)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    result = evaluate("--quick", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    runs = json.loads((tmp_path / "results.json").read_bytes())["runs"]
    lost = {
        policy: sum(run["lost"] for run in runs if run["policy"] == policy)
        for policy in ("direct", "hivemind", "hivemind-without-retry")
    }
    assert lost["hivemind"] == 0 < lost["hivemind-without-retry"]
    assert lost["direct"] > 0
    report = (tmp_path / "report.md").read_text()
    assert "| hivemind | 0.00 % (0.00 to 0.00) |" in report
