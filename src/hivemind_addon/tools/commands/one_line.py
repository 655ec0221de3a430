"""What can be expected to go wrong, told in one line and without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def in_one_line(*expected: type[Exception]) -> Iterator[None]:
    """Around a command, or a part of it: these, whose text is one line, and what the system says of a file."""
    try:
        yield
    except expected as error:
        raise click.ClickException(str(error)) from error
    except BrokenPipeError:
        raise  # whoever read us has seen enough: click ends without a word
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror or error}") from error
