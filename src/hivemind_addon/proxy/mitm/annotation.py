"""What we keep with a flow: its history, and which comment and marker are ours.

It is in `flow.metadata`, as plain JSON, and so in files too: a history can be read where no scheduler runs, and what a
person wrote is told from what we wrote after a reload and in a replay, too.
"""

from mitmproxy.flow import Flow
from msgspec import Struct, ValidationError, convert, field, to_builtins

from hivemind_addon.proxy.observe.history import TicketHistory
from hivemind_addon.proxy.profile.model import DialectName

KEY = "hivemind"
"""In `flow.metadata`."""


class Annotation(Struct):
    """Ours in one flow."""

    dialect: DialectName
    history: TicketHistory = field(name="story")
    """By the name that it has in files of earlier versions."""
    comment: str = ""
    """As we wrote it last."""
    marker: str = ""
    """As we set it last."""


class Written(Struct):
    """The part of an annotation that says what is ours."""

    comment: str = ""
    marker: str = ""


class _Written(Struct):
    hivemind: Written = field(default_factory=Written)


def annotation_of(flow: Flow) -> Annotation | None:
    """The flow's annotation; None: it has none, or one that another version wrote."""
    try:
        return convert(flow.metadata[KEY], Annotation)
    except (KeyError, ValidationError):
        return None


def written_of(flow: Flow) -> Written:
    """What we wrote on the flow last; nothing where it has no annotation."""
    try:
        return convert(flow.metadata, _Written).hivemind
    except ValidationError:
        return Written()


def write(flow: Flow, dialect: DialectName, history: TicketHistory, comment: str, marker: str) -> bool:
    """Put comment, marker and history on the flow; a person's own comment and marker stay. False: nothing is new."""
    before = written_of(flow)
    if (before.comment, before.marker) == (comment, marker):
        return False
    if flow.comment in ("", before.comment):
        flow.comment = comment
    if flow.marked in ("", before.marker):
        flow.marked = marker
    flow.metadata[KEY] = to_builtins(Annotation(dialect=dialect, history=history, comment=comment, marker=marker))
    return True


def is_touched(flow: Flow) -> bool:
    """Whether a person wrote a comment on the flow, or marked it."""
    ours = written_of(flow)
    return flow.comment not in ("", ours.comment) or flow.marked not in ("", ours.marker)
