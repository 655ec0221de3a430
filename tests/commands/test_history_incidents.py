import json

import pytest

from tests.commands.asking import journal_fixture, said  # noqa: F401 - a fixture
from tests.journal.book import POOL

pytestmark = pytest.mark.usefixtures("journal")


def test_the_last_incident():
    text = said("incident")
    assert text.startswith(f"incident 1: provider down at {POOL}\n")
    assert "529" in text
    told = json.loads(said("incident", "1", "--json"))
    assert (told["lasted_s"], told["ending"]) == (10.0, "the provider answered again")
    assert told["aftermath"]["rescued"] == 1


def test_incidents_of_a_pool():
    assert len(json.loads(said("incidents", "--pool", "api.anthropic.com", "--json"))) == 1
    assert said("incidents", "--pool", "api.openai.com") == "no incident is known\n"
    assert said("incident", "--pool", "api.openai.com") == "no incident is known\n"


def test_an_incident_that_went_on_after_the_span_has_its_end():
    [one] = json.loads(said("incidents", "--until", "2026-01-01T12:00:05Z", "--json"))
    assert one["ending"] == "the provider answered again"
    assert said("incidents", "--until", "2026-01-01T12:00:02Z") == "no incident is known\n"
