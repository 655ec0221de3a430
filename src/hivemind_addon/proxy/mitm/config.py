"""The options of this proxy while it runs: told without secrets, and set as `--set` does at the start.

Only our own: mitmproxy's belong to whoever started it. A value is refused with the line that the start would print, and
then the old one stays.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path

from mitmproxy import ctx, exceptions

from hivemind_addon.api.command import OptionView, Said
from hivemind_addon.proxy.mitm.options import OPTIONS, PREFIX, Option

_MASK = "…"
_NO_PATHS = ("", "off", "-")
_TRUTH = {"true": True, "false": False}


def option_views() -> list[OptionView]:
    """Every option of ours with its present value."""
    return [
        OptionView(
            name=option.name,
            value=_shown(option, getattr(ctx.options, option.name)),
            default=option.default,
            help=option.help,
            settable=option.settable,
            guarded=option.is_guarded,
        )
        for option in OPTIONS
    ]


def set_option(name: str, text: str) -> Said:
    """Set one of ours, by its name with or without the prefix. What it is then, or why it stays as it was."""
    option = _named(name)
    if option is None:
        return Said(done=False, text=f"{name}: no such option; {_nearest(name)}")
    if not option.settable:
        return Said(done=False, text=f"{option.name} cannot be changed while the proxy runs; give it at the start")
    try:
        value = _value(option, text)
        before = getattr(ctx.options, option.name)
        if _same(before, value):
            return Said(done=True, text=f"{option.name} is {_words(option, value)} already")
        ctx.options.update(**{option.name: value})
    except ValueError as error:
        return Said(done=False, text=f"{option.name}: {error}")
    except exceptions.OptionsError as error:
        return Said(done=False, text=str(error))
    return Said(done=True, text=f"{option.name} is now {_words(option, value)}", value=_shown(option, value))


def _named(name: str) -> Option | None:
    full = name if name.startswith(PREFIX) else PREFIX + name
    return next((option for option in OPTIONS if option.name == full), None)


def _nearest(name: str) -> str:
    known = [option.name.removeprefix(PREFIX) for option in OPTIONS]
    close = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
    return f"did you mean {PREFIX}{close[0]}?" if close else "`hivemind config` lists them"


def _value(option: Option, text: str) -> bool | str | list[str]:
    """Raises ValueError: one line that says what is wrong."""
    if option.type is bool:
        if text.lower() not in _TRUTH:
            raise ValueError(f"{text!r} is neither true nor false")
        return _TRUTH[text.lower()]
    if option.type is str:
        if option.is_path and text not in _NO_PATHS and not Path(text).expanduser().is_absolute():
            raise ValueError(f"{text!r} is relative, and the proxy is in {Path.cwd()}; give the whole path")
        return text
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} cannot be split into words ({error}); close its quotes") from error


def _same(before: object, value: object) -> bool:
    if isinstance(before, Sequence) and isinstance(value, list):
        return list(before) == value
    return before == value


def _shown(option: Option, value: object) -> object:
    if option.may_hold_secrets and isinstance(value, str) and value.strip():
        program, *rest = value.split(maxsplit=1)
        return f"{program} {_MASK}" if rest else program
    return value if isinstance(value, bool | str) or not isinstance(value, Sequence) else list(value)


def _words(option: Option, value: object) -> str:
    match _shown(option, value):
        case bool() as truth:
            return str(truth).lower()
        case list() as words:
            return shlex.join(words) or "empty"
        case shown:
            return str(shown) or "empty"
