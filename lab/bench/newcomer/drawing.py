"""A terminal's screen as SVG: a picture, or many after each other. Text stays text, nothing is fetched, no script runs.

The ground is dark, so that the picture reads on light and dark pages alike.
"""

from collections.abc import Sequence
from html import escape

from lab.bench.newcomer.terminal import Frame, Row, Style

CELL = (8.4, 17)
"""Of a character, in pixels."""
_EDGE = 12
_BAR = 26
_GROUND, _INK, _FAINT = "#181b21", "#d0d4dc", "#5c6370"
_COLOURS = {
    "default": _INK,
    "ink": _INK,
    "ground": _GROUND,
    "black": _GROUND,
    "red": "#e06c60",
    "green": "#7ebe78",
    "brown": "#e5b354",
    "blue": "#619ee8",
    "magenta": "#be8cdc",
    "cyan": "#56b6c2",
    "white": _INK,
    "brightblack": _FAINT,
    "brightred": "#e06c60",
    "brightgreen": "#7ebe78",
    "brightbrown": "#f0c86e",
    "brightblue": "#78aff5",
    "brightmagenta": "#cda0eb",
    "brightcyan": "#6ec8d2",
    "brightwhite": "#f0f2f5",
}
"""As pyte calls them."""
_SHORTEST_S, _LONGEST_S = 0.2, 2.0
_LAST_S = 4.0


def still(rows: Sequence[Row], title: str) -> str:
    """A picture of a screen, without the empty lines at the end."""
    kept = list(rows)
    while len(kept) > 1 and not _text(kept[-1]).strip():
        kept.pop()
    book = _Book()
    body = "".join(book.use(row, number) for number, row in enumerate(kept))
    return _document(title, _columns(kept), len(kept), book.defined, body, "")


def moving(frames: Sequence[Frame], title: str) -> str:
    """The frames after each other, again and again. Where nothing may move, or nothing can, the longest frame stands."""
    kept = _thinned(frames)
    book, lines = _Book(), len(kept[0].rows)
    height = lines * CELL[1]
    film = "".join(
        f'<g transform="translate(0 {place * height})">'
        + "".join(book.use(row, number) for number, row in enumerate(frame.rows))
        + "</g>"
        for place, frame in enumerate(kept)
    )
    shown = max(range(len(kept)), key=lambda place: (sum(len(_text(row).strip()) for row in kept[place].rows), place))
    total_s = sum(frame.lasts_s for frame in kept)
    steps, at_s = [], 0.0
    for place, frame in enumerate(kept):
        steps.append(f"{100 * at_s / total_s:.2f}%{{transform:translateY(-{place * height}px)}}")
        at_s += frame.lasts_s
    style = (
        f".film{{transform:translateY(-{shown * height}px)}}"
        f"@media(prefers-reduced-motion:no-preference){{.film{{animation:film {total_s:.1f}s step-end infinite}}}}"
        f"@keyframes film{{{''.join(steps)}}}"
    )
    return _document(title, _columns(kept[0].rows), lines, book.defined, f'<g class="film">{film}</g>', style)


def _thinned(frames: Sequence[Frame]) -> list[Frame]:
    """Without what nobody could read, and without long waits."""
    kept: list[Frame] = []
    carried_s = 0.0
    for frame in frames:
        lasts_s = frame.lasts_s + carried_s
        if lasts_s < _SHORTEST_S and len(kept) > 1:
            carried_s = lasts_s
            continue
        carried_s = 0.0
        kept.append(Frame(frame.rows, min(lasts_s, _LONGEST_S)))
    kept[-1] = Frame(frames[-1].rows, _LAST_S)
    return kept


class _Book:
    """Each different line once."""

    def __init__(self) -> None:
        self._numbers: dict[Row, int] = {}

    def use(self, row: Row, number: int) -> str:
        if not _text(row).strip() and all(style.ground == "default" for _, style in row):
            return ""
        name = self._numbers.setdefault(row, len(self._numbers))
        return f'<use href="#r{name}" y="{number * CELL[1]}"/>'

    @property
    def defined(self) -> str:
        return "".join(f'<g id="r{name}">{_drawn(row)}</g>' for row, name in self._numbers.items())


def _drawn(row: Row) -> str:
    parts, column = [], 0
    for text, style in row:
        width = len(text)
        if style.ground != "default":
            parts.append(
                f'<rect x="{column * CELL[0]:.1f}" width="{width * CELL[0]:.1f}" height="{CELL[1]}" '
                f'fill="{_colour(style.ground, _GROUND)}"/>'
            )
        if stripped := text.strip():
            start = column + len(text) - len(text.lstrip())
            # The length is said, so that columns stand below each other in whatever font there is.
            parts.append(
                f'<text x="{start * CELL[0]:.1f}" y="13" textLength="{len(stripped) * CELL[0]:.1f}"{_look(style)}>'
                f"{escape(stripped, quote=False)}</text>"
            )
        column += width
    return "".join(parts)


def _look(style: Style) -> str:
    look = "" if style.ink == "default" else f' fill="{_colour(style.ink, _INK)}"'
    look += ' font-weight="bold"' if style.bold else ""
    look += ' font-style="italic"' if style.italics else ""
    return look + (' text-decoration="underline"' if style.underscore else "")


def _colour(name: str, default: str) -> str:
    return _COLOURS.get(name) or (f"#{name}" if len(name) == 6 else default)


def _text(row: Row) -> str:
    return "".join(text for text, _ in row)


def _columns(rows: Sequence[Row]) -> int:
    return max(len(_text(row)) for row in rows)


def _document(title: str, columns: int, lines: int, defined: str, body: str, style: str) -> str:
    inner_width, inner_height = columns * CELL[0], lines * CELL[1]
    width, height = inner_width + 2 * _EDGE, inner_height + _BAR + _EDGE
    lights = "".join(
        f'<circle cx="{_EDGE + 6 + 16 * place}" cy="14" r="5" fill="{colour}"/>'
        for place, colour in enumerate(("#e06c60", "#e5b354", "#7ebe78"))
    )
    fonts = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'
        f"<style>text{{font:14px {fonts};white-space:pre}}{style}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{_GROUND}" stroke="#3a3f4b"/>{lights}'
        f'<text x="{width / 2:.0f}" y="18" text-anchor="middle" fill="{_FAINT}">{escape(title)}</text>'
        f"<defs>{defined}</defs>"
        f'<svg x="{_EDGE}" y="{_BAR}" width="{inner_width:.0f}" height="{inner_height}" overflow="hidden" fill="{_INK}">'
        f"{body}</svg>"
        "</svg>\n"
    )
