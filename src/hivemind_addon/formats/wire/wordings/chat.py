"""The words of answers in OpenAI's Chat Completions."""

from hivemind_addon.formats.wire.conversation_parts import (
    Assembly,
    Values,
    calls_in,
    members_of,
    message_parts,
    objects_in,
    word_of,
)


class ChatWording:
    """Choices with a message, or with deltas."""

    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""
        out = answer.out
        for choice in objects_in(top.get("choices")):
            message = choice.get("message")
            spoken = message if isinstance(message, dict) else {"content": choice.get("text")}
            out.unsaid = out.unsaid or bool(spoken.get("audio"))
            out.parts += message_parts(spoken, heading="text")
            out.stop = word_of(choice.get("finish_reason")) or out.stop

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:  # noqa: ARG002
        """Put the next event of a streamed answer to what came before."""
        answer.out.model = answer.out.model or word_of(top.get("model"))
        for choice in objects_in(top.get("choices")):
            place = choice.get("index", 0)
            delta = members_of(choice.get("delta")) or {"content": choice.get("text")}
            answer.out.unsaid = answer.out.unsaid or bool(delta.get("audio"))
            # Two names for one thing; a server that sends both sends the same text twice.
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            spoken = (thought, "thinking"), (delta.get("content"), "text"), (delta.get("refusal"), "text")
            for piece, heading in spoken:
                if isinstance(piece, str) and piece:
                    answer.part((place, heading), heading).text += piece
            for call in calls_in(delta):
                if function := members_of(call.get("function")):
                    part = answer.part((place, "call", call.get("index", 0)), "tool call")
                    if part.heading == "tool call":  # some servers repeat the name
                        part.heading = f"tool call {word_of(function.get('name'))}".rstrip()
                    part.text += word_of(function.get("arguments"))
            answer.out.stop = word_of(choice.get("finish_reason")) or answer.out.stop
