from pathlib import Path

import pytest

from hivemind_addon.proxy.api.command import CommandReply, ShowConfig
from hivemind_addon.proxy.api.control import CommandUnanswered
from hivemind_addon.proxy.journal.file import default_journal
from hivemind_addon.tools.history import reader


@pytest.fixture
def says(monkeypatch):
    def set_to(value):
        def answer(path, command, *, timeout_s):
            assert (path.name, command) == ("8123.sock", ShowConfig())
            if value is None:
                raise CommandUnanswered("no proxy is there")
            option = {"name": "hivemind_journal", "value": value, "default": "", "help": "", "settable": True}
            return CommandReply(done=True, text="", value=[option])

        monkeypatch.setattr(reader, "send_command", answer)

    return set_to


def test_it_is_the_one_that_the_proxy_keeps(says):
    says("~/night.db")
    assert reader.journal_of(8123) == Path("~/night.db").expanduser()


@pytest.mark.parametrize("value", [None, "", "off"])
def test_where_no_proxy_answers_or_names_one_it_is_the_usual_one(says, value):
    says(value)
    assert reader.journal_of(8123) == default_journal()
