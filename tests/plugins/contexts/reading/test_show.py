from hivemind_addon.plugins.contexts.reading.prompt import parts_of, prompt_of
from hivemind_addon.plugins.contexts.reading.show import lines
from tests.cases import each
from tests.plugins.contexts.samples import BODIES, MESSAGES, context


def shown(*, full=False, **changes):
    return "\n".join(lines(context(**changes), full=full))


def conversation(*texts):
    return {**MESSAGES, "messages": [{"role": "user", "content": text} for text in texts]}


def test_people_see_whose_it_is_and_what_was_said(golden):
    parts = [shown(task="task-9"), shown(full=True), shown(full=True, dialect="openai-responses")]
    golden("context.txt", "\n\n\n".join(parts))


def test_of_a_long_conversation_the_newest_is_shown_and_of_a_long_text_the_beginning():
    said = conversation(*(f"number {number}" for number in range(40)))
    assert "number 39" in shown(body=said)
    assert "number 20" not in shown(body=said)
    assert "(28 earlier pieces and 1 instruction to the model not shown" in shown(body=said)
    assert "number 0" in shown(body=said, full=True)
    long = conversation("word " * 10_000 + "the end")
    assert len(shown(body=long)) < 3000
    assert "more characters)" in shown(body=long)
    assert "the end" in shown(body=long, full=True)
    many = conversation("\n".join(f"line {number}" for number in range(100)))
    assert "line 99" not in shown(body=many)
    assert "line 99" in shown(body=many, full=True)


def test_what_a_tool_has_printed_does_not_steer_the_terminal():
    for full in (False, True):
        text = shown(body=conversation("\x1b]0;title\x07 \x1b[31mred\x1b[0m \x9b2J\rback\ttab"), full=full)
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert "\r" not in text
        assert "red" in text
        assert "\ttab" in text


@each("dialect", BODIES)
def test_a_prompt_has_all_that_was_said_and_done_and_no_programs_instructions(dialect):
    prompt = prompt_of(context(dialect=dialect))
    assert "Read r.txt." in prompt
    assert "## Tool call " in prompt
    assert "line 1" in prompt
    assert prompt.index("Read r.txt.") < prompt.index("## Tool call") < prompt.index("line 1")
    assert "careful program" not in prompt
    assert "Be brief" not in prompt
    assert "It was kept at 2026-11-22 11:01 UTC (the budget of everyone per day was spent)." in prompt


def test_what_has_fences_of_its_own_is_fenced_by_longer_ones():
    prompt = prompt_of(context())
    assert "````\n```\nline 1\n```\n````" in prompt


def test_what_says_nothing_makes_no_heading():
    body = b'{"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "b"}]}'
    assert "## User" not in prompt_of(context(body=body))
    assert [part.heading for part in parts_of(context(body=body))] == ["user", "assistant"]
