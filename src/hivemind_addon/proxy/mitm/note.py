"""What we keep with a flow: its story, and which comment and marker are ours.

It is in `flow.metadata`, as plain JSON, and so in files too: a story can be read where no scheduler runs, and what a
person wrote is told from what we wrote after a reload and in a replay, too.
"""

from mitmproxy.flow import Flow
from msgspec import Struct, ValidationError, convert, field, to_builtins

from hivemind_addon.proxy.observe.story import Story
from hivemind_addon.proxy.profile.model import DialectName

KEY = "hivemind"
"""In `flow.metadata`."""


class Note(Struct):
    """Ours in one flow."""

    dialect: DialectName
    story: Story
    comment: str = ""
    """As we wrote it last."""
    marker: str = ""
    """As we set it last."""


class Written(Struct):
    """The part of a note that says what is ours."""

    comment: str = ""
    marker: str = ""


class _Written(Struct):
    hivemind: Written = field(default_factory=Written)


def note_of(flow: Flow) -> Note | None:
    """The flow's note; None: it has none, or one that another version wrote."""
    try:
        return convert(flow.metadata[KEY], Note)
    except (KeyError, ValidationError):
        return None


def written_of(flow: Flow) -> Written:
    """What we wrote on the flow last; nothing where it has no note."""
    try:
        return convert(flow.metadata, _Written).hivemind
    except ValidationError:
        return Written()


def write(flow: Flow, dialect: DialectName, story: Story, comment: str, marker: str) -> bool:
    """Put comment, marker and story on the flow; a person's own comment and marker stay. False: nothing is new."""
    before = written_of(flow)
    if (before.comment, before.marker) == (comment, marker):
        return False
    if flow.comment in ("", before.comment):
        flow.comment = comment
    if flow.marked in ("", before.marker):
        flow.marked = marker
    flow.metadata[KEY] = to_builtins(Note(dialect=dialect, story=story, comment=comment, marker=marker))
    return True


def is_touched(flow: Flow) -> bool:
    """Whether a person wrote a comment on the flow, or marked it."""
    ours = written_of(flow)
    return flow.comment not in ("", ours.comment) or flow.marked not in ("", ours.marker)
