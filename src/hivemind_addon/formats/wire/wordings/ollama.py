"""The words of answers in Ollama's own format."""

from hivemind_addon.formats.wire.conversation_parts import Assembly, Values, call_parts, members_of, word_of


class OllamaWording:
    """One JSON object a line, a chat's or a completion's."""

    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""
        self.read_event("", top, answer)

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:  # noqa: ARG002
        """Put the next event of a streamed answer to what came before."""
        answer.out.model = answer.out.model or word_of(top.get("model"))
        message = members_of(top.get("message"))
        spoken = (
            (message.get("thinking") or top.get("thinking"), "thinking"),
            (message.get("content") or top.get("response"), "text"),
        )
        for piece, heading in spoken:
            if isinstance(piece, str) and piece:
                answer.part(heading, heading).text += piece
        answer.out.parts += call_parts(message)
        answer.out.stop = word_of(top.get("done_reason")) or answer.out.stop
