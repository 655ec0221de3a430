"""The page of a comparison and its charts: everything comes from figures."""

import re
import sys
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.tools.cli import main
from lab.evaluate import sockets
from lab.evaluate.chart_data import ChartData, data_of
from lab.evaluate.charts import _CARD, charts
from lab.evaluate.report import markdown
from lab.evaluate.sockets import SocketRun
from tests.lab.evaluate.samples import SETTING, figures, made_up, small_campaign

ROOT = Path(__file__).parents[3]
LABEL = re.compile(r"<text [^>]*>([^<]*)<")


@pytest.fixture(scope="module")
def drawn():
    return charts(data_of(small_campaign()))


# Charts


def test_every_question_has_its_chart(drawn):
    assert [chart.name for chart in drawn] == ["lost", "refused", "stretch", "ablation"]


def test_each_is_a_well_formed_svg_without_a_date(drawn):
    for chart in drawn:
        assert ET.fromstring(chart.svg).tag.endswith("svg")
        assert "dc:date" not in chart.svg
        assert chart.title


def test_the_same_figures_give_the_same_bytes(drawn):
    assert charts(data_of(small_campaign())) == drawn


def test_the_committed_charts_are_those_of_their_numbers():
    folder = ROOT / "docs" / "evaluation"
    made = charts(msgspec.json.decode((folder / "charts.json").read_bytes(), type=ChartData))
    assert {path.stem for path in folder.glob("*.svg")} == {chart.name for chart in made}
    for chart in made:
        committed = (folder / f"{chart.name}.svg").read_text()
        assert LABEL.findall(committed) == LABEL.findall(chart.svg), (
            "`hivemind lab prove --charts docs/evaluation --redraw` writes them"
        )


def test_a_chart_is_a_card_of_its_own_colour_with_titles(drawn):
    for chart in drawn:
        assert f'style="fill: {_CARD}"' in chart.svg
        assert ">scenario" in chart.svg


def test_labels_stay_text(drawn):
    svg = {chart.name: chart.svg for chart in drawn}
    for word in ("replay-11", "sdk-retry", "limits: window"):
        assert f">{word}<" in svg["lost"]
    assert ">fair-order<" in svg["ablation"]


# Pages


def test_the_page_says_what_was_lost_and_how_it_was_made():
    text = markdown(small_campaign(), SETTING, {"lost": "![Agents lost](evaluation/lost.svg)"})
    assert "`hivemind lab prove --compare`" in text
    assert "| replay-11 | window | direct | 91 |" in text
    assert "![Agents lost](evaluation/lost.svg)" in text
    assert "- **retry**: without it `replay-11` (bucket): agents lost +91" in text
    assert "- **watchdog**: taking it away changes nothing noteworthy" in text
    assert (
        "| replay-11 | 11 agent: 8, 0.1 to 0.5, 0.12, 50 | 120, 0 | 60 requests in 60 s | 5 | 502 8.0%, reset" in text
    )
    assert "Python 3.12" in text


def test_every_table_has_as_many_cells_in_each_row():
    text = markdown(made_up({}), SETTING, {})
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1, block


def test_what_ran_on_sockets_is_told_and_why_the_peer_did_not():
    run = SocketRun(
        "stress", LimitKind.WINDOW, "hivemind-scheduler", 0, 5.0, 20, figures(lost=0.5, stretch=None), "502 (10)"
    )
    setting = replace(SETTING, sockets=[run], peer_problem="it cannot be installed: no network")
    text = markdown(made_up({}), setting, {})
    assert "| stress | window | hivemind-scheduler | 5 | 10 of 20 | 100 | 0.0 | 0.0 |  | 2.0 | 502 (10) |" in text
    assert "The peer was not run: it cannot be installed: no network." in text
    assert "On real sockets" not in markdown(made_up({}), SETTING, {})


# The command


def prove(*words):
    return CliRunner().invoke(main, ["lab", "prove", "--compare", "--seeds", "1", *words])


def test_a_comparison_tells_the_scheduler_from_the_rest_and_draws_its_charts(tmp_path):
    page, folder = tmp_path / "page.md", tmp_path / "pictures"
    words = ("--only", "replay-11", "--charts", str(folder), "--output", str(page))
    result = prove(*words)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "`hivemind lab prove --compare --seeds 1 --only replay-11`" in text
    assert "| hivemind | 0.00 % (0.00 to 0.00) |" in text
    assert "- **retry**: without it `replay-11` (bucket): agents lost +" in text
    assert "![Agents lost](pictures/lost.svg)" in text
    drawn = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert sorted(drawn) == ["ablation.svg", "charts.json", "lost.svg", "refused.svg", "stretch.svg"]
    prove(*words)
    assert (page.read_text(), {file.name: file.read_bytes() for file in folder.iterdir()}) == (text, drawn)
    (folder / "lost.svg").unlink()
    assert CliRunner().invoke(main, ["lab", "prove", "--charts", str(folder), "--redraw"]).exit_code == 0
    assert (folder / "lost.svg").read_bytes() == drawn["lost.svg"]
    (folder / "charts.json").write_text("{}")
    said = CliRunner().invoke(main, ["lab", "prove", "--charts", str(folder), "--redraw"])
    assert said.exit_code == 1
    assert "name a folder that `hivemind lab prove --compare --charts FOLDER` wrote" in said.output


def test_only_the_named_policies_are_compared_and_no_primitive_is_taken_away():
    text = prove("--only", "micro-5", "--policy", "fifo").stdout
    assert "`hivemind lab prove --compare --seeds 1 --policy fifo --only micro-5`" in text
    assert "| micro-5 | bucket | fifo |" in text
    assert "| micro-5 | bucket | hivemind |" in text
    assert "direct" not in text
    assert "What each primitive is worth" not in text


def test_charts_without_matplotlib_name_their_cure_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "lab.evaluate.charts")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = prove("--only", "micro-5", "--charts", str(tmp_path / "charts"))
    assert result.exit_code == 1
    assert "the charts need matplotlib: " in result.stderr
    assert "-m pip install 'hivemind-addon[evaluate]'" in result.stderr
    assert not (tmp_path / "charts").exists()


def test_options_of_a_comparison_go_with_it():
    for words in (["--peer"], ["--charts", "x"], ["--redraw"]):
        result = CliRunner().invoke(main, ["lab", "prove", *words])
        assert (result.exit_code, "go with --compare" in result.stderr) == (2, True)


def test_without_the_peer_the_rest_goes_on(monkeypatch):
    @contextmanager
    def installed_peer():
        raise sockets.PeerUnavailable("hivemind-scheduler 0.2.0 cannot be installed: no network")
        yield

    asked = []

    def run_on_sockets(*, peer, done):
        asked.append(peer)
        return []

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(sockets, "installed_peer", installed_peer)
    monkeypatch.setattr(sockets, "run_on_sockets", run_on_sockets)
    result = prove("--only", "micro-5", "--peer")
    assert result.exit_code == 0
    assert result.stderr == "hivemind-scheduler 0.2.0 cannot be installed: no network; the rest goes on\n"
    assert asked == [None]
    assert "The peer was not run: hivemind-scheduler 0.2.0 cannot be installed" in result.stdout
