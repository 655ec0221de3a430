"""Parts of Markdown pages."""

from collections.abc import Iterable, Mapping


def markdown_list(items: Mapping[str, str]) -> str:
    """An item of each name and text."""
    return "".join(f"- `{name}`: {text}\n" for name, text in items.items())


def markdown_filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with new text for each part, which stands between `<!-- NAME -->` and `<!-- end -->`."""
    for name, text in parts.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"the page has no part {name!r}"
        page = f"{before}{begin}\n{text.strip()}\n\n{end}{after}"
    return page


def markdown_table(titles: str, rows: Iterable[str]) -> str:
    """Titles and rows are cells with `|` between them."""
    lines = [titles, " | ".join(["---"] * (titles.count("|") + 1)), *rows]
    return "".join(f"| {line} |\n" for line in lines)
