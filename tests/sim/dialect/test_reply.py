from dataclasses import replace

from hivemind_addon.lab.sim.dialect import TaskTurn

from .samples import CALL, REPLY, TURN


def test_the_text_names_request_attempt_and_body():
    assert REPLY.text().startswith("req_000007 attempt 2 for 0badcafe:")


def test_the_pieces_count_all_output_tokens():
    assert [tokens for _, tokens in REPLY.deltas()] == [2, 2, 1]


def test_a_turn_replaces_the_text_and_counts_four_characters_a_token():
    reply = replace(REPLY, turn=TURN, output_tokens=TURN.output_tokens)
    assert reply.text() == TURN.text
    assert "".join(text for text, _ in reply.call_deltas()) == CALL.arguments
    delivered = sum(tokens for _, tokens in (*reply.deltas(), *reply.call_deltas()))
    assert delivered == TURN.output_tokens == 11


def test_a_turn_without_words_counts_one():
    assert TaskTurn().output_tokens == 1
