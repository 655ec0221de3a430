import json

from hivemind_addon.plugins.contexts.reading.difference import difference, lines
from tests.plugins.contexts.samples import BODIES, MESSAGES, RESPONSES, context

MARK = {"cache_control": {"type": "ephemeral"}}


def said(*texts, marked=-1, **members):
    messages = [
        {
            "role": ("user", "assistant")[at % 2],
            "content": [{"type": "text", "text": text, **(MARK if at == marked else {})}],
        }
        for at, text in enumerate(texts)
    ]
    return context("c0ffee0001", body={**MESSAGES, **members, "messages": messages})


def changes(before, after):
    return [
        (run.change.value, [one.index for one in run.before], [one.index for one in run.after])
        for run in difference(before, after).runs
    ]


def test_what_came_went_and_changed_is_told_by_message():
    before = said("a", "b", "c", "d")
    assert changes(before, said("a", "b", "c", "d", "e")) == [("same", [1, 2, 3, 4], [1, 2, 3, 4]), ("came", [], [5])]
    assert changes(before, said("a", "b", "C", "d"))[1] == ("changed", [3], [3])
    assert changes(before, said("a", "b", marked=1))[0] == ("same", [1, 2], [1, 2]), "marks of a cache are no change"
    assert changes(before, said("a", "b"))[1] == ("went", [3, 4], [])
    assert changes(before, before) == [("same", [1, 2, 3, 4], [1, 2, 3, 4])]


def test_other_members_and_the_answer_are_compared_too():
    assert difference(said("a"), said("a", model="m-2", system="Other.")).members == ("model", "system")
    answer = json.dumps({"content": [{"type": "text", "text": "yes"}]}).encode()
    before = context("c0ffee0001")
    assert changes(before, context("c0ffee0001", answer=answer))[-1][0] == "came"
    odd = context(body={**RESPONSES, "input": "Read r.txt."}, dialect="openai-responses")
    assert changes(odd, odd) == [("same", [1], [1])]
    for dialect in BODIES:
        assert difference(context(dialect=dialect), context(dialect=dialect)).members == ()


def test_a_compaction_is_seen_at_once(golden):
    before = said("Fix the test.", *(f"step {number} " * 40 for number in range(31)))
    after = said("Fix the test.", "Summary: 31 steps are done.\x1b[2J", "Go on.", tools=[])
    golden("diff.txt", "\n".join(lines(difference(before, after), width=80)))
    full = list(lines(difference(before, after), width=80, full=True))
    assert sum(line.startswith("-") for line in full) == 31
    assert max(map(len, full)) <= 80
