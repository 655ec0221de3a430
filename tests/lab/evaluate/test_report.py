"""The pages and their charts: everything comes from figures, and the HTML page needs nothing but itself."""

import json
import re
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.tools.cli import main
from lab.evaluate import campaign, commands, sockets
from lab.evaluate.chart_data import ChartData, data_of
from lab.evaluate.charts import _CARD, charts
from lab.evaluate.report import markdown, page, results
from lab.evaluate.sockets import SocketRun
from tests.lab.evaluate.samples import SETTING, figures, made_up, small_campaign

ROOT = Path(__file__).parents[3]
LABEL = re.compile(r"<text [^>]*>([^<]*)<")
PLAN = campaign.CampaignPlan((cases()["micro-5"],), seeds=1, ablation_seeds=1, ablated=())


@pytest.fixture(scope="module")
def drawn():
    return charts(data_of(small_campaign()))


# Charts


def test_every_question_has_its_chart(drawn):
    assert [chart.name for chart in drawn] == ["lost", "refused", "stretch", "ablation"]


def test_each_is_a_picture_and_a_well_formed_svg_without_a_date(drawn):
    for chart in drawn:
        assert chart.png.startswith(b"\x89PNG")
        assert ET.fromstring(chart.svg).tag.endswith("svg")
        assert "dc:date" not in chart.svg
        assert chart.title


def test_the_same_figures_give_the_same_bytes(drawn):
    assert charts(data_of(small_campaign())) == drawn


def test_charts_are_drawn_anew_from_the_numbers_beside_them(drawn, tmp_path):
    file = tmp_path / "charts.json"
    file.write_bytes(msgspec.json.encode(data_of(small_campaign())))
    said = CliRunner().invoke(main, ["lab", "evaluate", "--redraw", str(file)])
    assert said.exit_code == 0, said.output
    assert {path.stem: path.read_text() for path in tmp_path.glob("*.svg")} == {one.name: one.svg for one in drawn}
    file.write_text("{}")
    said = CliRunner().invoke(main, ["lab", "evaluate", "--redraw", str(file)])
    assert said.exit_code == 1
    assert "name a charts.json" in said.output


def test_the_committed_charts_are_those_of_their_numbers():
    folder = ROOT / "docs" / "evaluation"
    made = charts(msgspec.json.decode((folder / "charts.json").read_bytes(), type=ChartData))
    assert {path.stem for path in folder.glob("*.svg")} == {chart.name for chart in made}
    for chart in made:
        committed = (folder / f"{chart.name}.svg").read_text()
        assert LABEL.findall(committed) == LABEL.findall(chart.svg), "`hivemind lab evaluate --redraw` writes them"


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


def test_the_page_says_what_was_lost_and_how_it_was_made(drawn):
    text = markdown(small_campaign(), drawn, SETTING, folder="evaluation")
    assert "`hivemind lab evaluate --quick`" in text
    assert "| replay-11 | window | direct | 91 |" in text
    assert "![Agents lost](evaluation/lost.svg)" in text
    assert "- **retry**: without it `replay-11` (bucket): agents lost +91" in text
    assert "- **watchdog**: taking it away changes nothing noteworthy" in text
    assert (
        "| replay-11 | 11 agent: 8, 0.1 to 0.5, 0.12, 50 | 120, 0 | 60 requests in 60 s | 5 | 502 8.0%, reset" in text
    )
    assert "Python 3.12" in text


def test_every_table_has_as_many_cells_in_each_row():
    text = markdown(made_up({}), [], SETTING, folder="x")
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1, block


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.fetched, self.ids, self.open = [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.fetched += [
            value
            for name, value in attributes
            if name in ("src", "srcset") or (name.endswith("href") and not value.startswith("#"))
        ]
        self.ids += [given["id"]] if "id" in given else []


def test_the_html_page_fetches_nothing_and_names_nothing_twice(drawn):
    text = page(small_campaign(), drawn, SETTING)
    parsed = Page()
    parsed.feed(text)
    assert parsed.fetched == []
    assert len(parsed.ids) == len(set(parsed.ids)) > 10
    assert text.count("<svg") == len(drawn)
    assert text.count("<figcaption>") == len(drawn)
    assert "@import" not in text


def test_the_pages_are_the_same_each_time(drawn):
    assert page(small_campaign(), drawn, SETTING) == page(small_campaign(), drawn, SETTING)


def test_what_ran_on_sockets_is_told_and_why_the_peer_did_not():
    run = SocketRun(
        "stress", LimitKind.WINDOW, "hivemind-scheduler", 0, 5.0, 20, figures(lost=0.5, stretch=None), "502 (10)"
    )
    setting = replace(SETTING, sockets=[run], peer_problem="it cannot be installed: no network")
    text = markdown(made_up({}), [], setting, folder="x")
    assert "| stress | window | hivemind-scheduler | 5 | 10 of 20 | 100 | 0.0 | 0.0 |  | 2.0 | 502 (10) |" in text
    assert "The peer was not run: it cannot be installed: no network." in text
    assert "On real sockets" not in markdown(made_up({}), [], SETTING, folder="x")


def test_json_has_every_run():
    campaign = small_campaign()
    document = json.loads(results(campaign, SETTING))
    assert len(document["runs"]) == len(campaign.runs)
    assert {"scenario", "limits", "policy", "seed", "lost", "stretch", "wait_p99_s"} <= set(document["runs"][0])
    assert document["command"] == "hivemind lab evaluate --quick"


def test_markdown_becomes_html_without_links():
    text = page(made_up({}), [], SETTING)
    assert '<div class="wide"><table>' in text
    assert "<strong>retry</strong>: taking it away changes nothing" in text
    assert "<code>hivemind</code>: the scheduler." in text
    assert "](" not in text


# The command


@pytest.fixture
def small(monkeypatch):
    """The plan of every evaluation is a small one."""
    monkeypatch.setattr(campaign, "quick_plan", lambda _: PLAN)
    monkeypatch.setattr("signal.signal", lambda *_: None)


def evaluate(*words):
    return CliRunner().invoke(main, ["lab", "evaluate", *words])


def test_a_quick_evaluation_writes_everything_and_the_same_again(tmp_path, small):
    result = evaluate("--quick", "--out", str(tmp_path / "one"))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        str(tmp_path / "one" / name) for name in ("report.md", "report.html", "results.json", "evaluation")
    ]
    assert "`hivemind lab evaluate --quick`" in (tmp_path / "one" / "report.md").read_text()
    pictures = sorted(file.name for file in (tmp_path / "one" / "evaluation").iterdir())
    assert pictures == sorted(
        ["charts.json", *(f"{name}.{kind}" for name in ("lost", "refused", "stretch") for kind in ("svg", "png"))]
    )
    evaluate("--quick", "--out", str(tmp_path / "two"))
    for name in ("report.md", "report.html", "results.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_without_the_peer_the_rest_goes_on(tmp_path, small, monkeypatch):
    @contextmanager
    def installed_peer():
        raise sockets.PeerUnavailable("hivemind-scheduler 0.2.0 cannot be installed: no network")
        yield

    asked = []

    def run_on_sockets(*, peer, done):
        asked.append(peer)
        return []

    monkeypatch.setattr(sockets, "installed_peer", installed_peer)
    monkeypatch.setattr(sockets, "run_on_sockets", run_on_sockets)
    result = evaluate("--quick", "--peer", "--out", str(tmp_path))
    assert result.exit_code == 0
    assert result.stderr == "hivemind-scheduler 0.2.0 cannot be installed: no network; the rest goes on\n"
    assert asked == [None]
    assert json.loads((tmp_path / "results.json").read_bytes())["peer_problem"]


def test_the_command_is_written_down_as_it_was_given():
    assert (
        commands._command(quick=False, real=True, peer=True, seeds=5) == "hivemind lab evaluate --real --peer --seeds 5"
    )


def test_the_quick_evaluation_tells_the_scheduler_from_the_rest(tmp_path, monkeypatch):
    plan = campaign.quick_plan(1)
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
