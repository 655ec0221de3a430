"""The words of answers in OpenAI's Responses."""

from hivemind_addon.formats.wire.conversation_parts import (
    Assembly,
    Values,
    error_text,
    members_of,
    message_parts,
    objects_in,
    word_of,
)

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class ResponsesWording:
    """Items, whose pieces come as deltas."""

    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""
        out = answer.out
        out.model = word_of(top.get("model")) or out.model
        details = members_of(top.get("incomplete_details"))
        out.stop = word_of(details.get("reason")) or word_of(top.get("status")) or out.stop
        if error := error_text(top):
            out.error = error
        items = objects_in(top.get("output"))
        out.unsaid = out.unsaid or any(item.get("type") != "message" for item in items)
        parts = [part for item in items for part in message_parts(item, heading="text")]
        if parts:
            out.parts = parts

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:
        """Put the next event of a streamed answer to what came before."""
        if name in {"response.created", "response.in_progress"}:
            answer.out.model = word_of(members_of(top.get("response")).get("model"))
        elif name in _ENDS:
            self.read_answer(members_of(top.get("response")), answer)
        elif name in {"response.output_item.added", "response.output_item.done"}:
            item, place = members_of(top.get("item")), top.get("output_index")
            for number, part in enumerate(message_parts(item, heading="text")):
                answer.part((place, number), part.heading).text = part.text  # when it is done, what was put together
        elif name.endswith(".delta") and isinstance(piece := top.get("delta"), str) and "audio" not in name:
            heading = "thinking" if "reasoning" in name else "tool call" if "call" in name else "text"
            answer.part((top.get("output_index"), 0), heading).text += piece
