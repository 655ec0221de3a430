import pytest

from hivemind_addon.tools.checkpoints.prompt import parts_of, prompt_of
from tests.checkpoint.samples import BODIES, checkpoint


@pytest.mark.parametrize("dialect", BODIES)
def test_a_prompt_has_all_that_was_said_and_done_and_no_programs_instructions(dialect):
    prompt = prompt_of(checkpoint(dialect=dialect))
    assert "Read r.txt." in prompt
    assert "## Tool call " in prompt
    assert "line 1" in prompt
    assert prompt.index("Read r.txt.") < prompt.index("## Tool call") < prompt.index("line 1")
    assert "careful program" not in prompt
    assert "Be brief" not in prompt
    assert "It was stopped at 2026-11-22 11:01 UTC: the budget of everyone per day was spent." in prompt


def test_what_has_fences_of_its_own_is_fenced_by_longer_ones():
    prompt = prompt_of(checkpoint())
    assert "````\n```\nline 1\n```\n````" in prompt


def test_what_says_nothing_makes_no_heading():
    body = b'{"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "b"}]}'
    assert "## User" not in prompt_of(checkpoint(body=body))
    assert [part.heading for part in parts_of(checkpoint(body=body))] == ["user", "assistant"]
