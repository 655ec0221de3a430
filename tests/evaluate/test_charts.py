"""Charts: all there, the same each time, readable as pictures and as text."""

import xml.etree.ElementTree as ET

import pytest

from hivemind_addon.lab.evaluate.charts import charts
from tests.evaluate.samples import made_up, small_campaign


@pytest.fixture(scope="module")
def drawn():
    return {chart.name: chart for chart in charts(small_campaign())}


def test_every_question_has_its_chart(drawn):
    assert list(drawn) == ["lost", "refused", "waste", "stretch", "waits", "ablation"]
    assert list({chart.name for chart in charts(made_up({"only-nothing": 1.0}))} - set(drawn)) == ["pairs-replay-11"]


def test_each_is_a_picture_and_a_well_formed_svg_without_a_date(drawn):
    for chart in drawn.values():
        assert chart.png.startswith(b"\x89PNG")
        assert ET.fromstring(chart.svg).tag.endswith("svg")
        assert "dc:date" not in chart.svg
        assert chart.title


def test_the_same_figures_give_the_same_bytes(drawn):
    again = {chart.name: chart for chart in charts(small_campaign())}
    assert again == drawn


def test_labels_stay_text(drawn):
    for word in ("replay-11", "sdk-retry", "limits: window"):
        assert f">{word}<" in drawn["lost"].svg
    assert ">fair-order<" in drawn["ablation"].svg
