"""The words of answers in Anthropic's Messages."""

from hivemind_addon.formats.wire.conversation_parts import (
    Assembly,
    Values,
    block_parts,
    members_of,
    objects_in,
    word_of,
)

_HEADINGS = {"text": "text", "thinking": "thinking", "partial_json": "tool call"}
"""Member of a delta, and what it goes on with."""


class MessagesWording:
    """Content blocks with a `type`, each begun, continued and closed by events of their own."""

    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""
        blocks = objects_in(top.get("content"))
        answer.out.parts = [part for block in blocks for part in block_parts(block, "text")]
        answer.out.stop = word_of(top.get("stop_reason"))

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:
        """Put the next event of a streamed answer to what came before."""
        if name == "content_block_delta":
            for key, piece in members_of(top.get("delta")).items():
                if key in _HEADINGS and isinstance(piece, str):
                    answer.part(top.get("index"), _HEADINGS[key]).text += piece
        elif name == "content_block_start":
            for part in block_parts(members_of(top.get("content_block")), "text"):
                begun = answer.part(top.get("index"), part.heading)
                begun.text = "" if part.text == "{}" else part.text
        elif name == "message_delta":
            answer.out.stop = word_of(members_of(top.get("delta")).get("stop_reason")) or answer.out.stop
        elif name == "message_start":
            answer.out.model = word_of(members_of(top.get("message")).get("model"))
