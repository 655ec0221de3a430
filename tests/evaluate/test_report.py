"""The pages: everything on them comes from figures, and the HTML page needs nothing but itself."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from hivemind_addon.lab.evaluate.charts import charts
from hivemind_addon.lab.evaluate.report import markdown, page, results
from hivemind_addon.lab.evaluate.sockets import SocketRun
from hivemind_addon.lab.sim.limits import LimitKind
from tests.evaluate.samples import SETTING, figures, made_up, small_campaign


@pytest.fixture(scope="module")
def drawn():
    return charts(small_campaign())


def test_the_page_says_what_was_lost_and_how_it_was_made(drawn):
    text = markdown(small_campaign(), drawn, SETTING, folder="evaluation")
    assert "`hivemind evaluate --quick`" in text
    assert "| replay-11 | window | direct | 91 |" in text
    assert "![Agents lost](evaluation/lost.svg)" in text
    assert "- **retry**: without it `replay-11` (bucket): agents lost +91" in text
    assert "- **watchdog**: taking it away changes nothing noteworthy" in text
    assert (
        "| replay-11 | 11 agent: 8, 0.1 to 0.5, 0.12, 50 | 120, 0 | 60 requests in 60 s | 5 | 502 8.0%, reset" in text
    )
    assert "Python 3.12" in text


def test_every_table_has_as_many_cells_in_each_row():
    text = markdown(made_up({"only-nothing": 1.0}), [], SETTING, folder="x")
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
    assert len(document["runs"]) == sum(map(len, campaign.runs.values()))
    assert {"scenario", "limits", "policy", "seed", "lost", "stretch", "wait_p99_s"} <= set(document["runs"][0])
    assert document["command"] == "hivemind evaluate --quick"
