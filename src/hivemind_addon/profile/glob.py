"""Globs of hosts, paths and model names: `*` matches any run of characters, `/` and nothing included."""


def glob_matches(glob: str, text: str) -> bool:
    """Whether the whole text matches. `*` is the only wildcard; linear in the text, whatever the glob."""
    head, *rest = glob.split("*")
    if not rest:
        return glob == text
    *middle, tail = rest
    if not text.startswith(head):
        return False
    position = len(head)
    for piece in middle:
        found = text.find(piece, position)
        if found < 0:
            return False
        position = found + len(piece)
    return len(text) - position >= len(tail) and text.endswith(tail)
