"""`hivemind context …`: what every conversation of the proxy's agents was, and how it goes on."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

import click
import msgspec

from hivemind_addon.kernel.values.command import names_agent
from hivemind_addon.plugins.contexts.commands.context_options import (
    ContextRef,
    ContextRefType,
    asks,
    project_option,
    ref_argument,
    write_new,
)
from hivemind_addon.plugins.contexts.commands.context_resume import resume
from hivemind_addon.plugins.contexts.commands.context_view import (
    COLUMNS,
    SPARE,
    VERSION_COLUMNS,
    WORDS,
    pressures,
    row,
    tree_rows,
)
from hivemind_addon.plugins.contexts.commands.recall import recall
from hivemind_addon.plugins.contexts.reading import show as view
from hivemind_addon.plugins.contexts.reading.bundle import bundle, new_versions, read_bundle
from hivemind_addon.plugins.contexts.reading.difference import difference
from hivemind_addon.plugins.contexts.reading.difference import lines as difference_lines
from hivemind_addon.plugins.contexts.reading.export import Export, ExportForm, export
from hivemind_addon.plugins.contexts.reading.tree import family, tree
from hivemind_addon.plugins.contexts.store import Context, ContextHead, ContextStore, UnknownContext
from hivemind_addon.proxy.api.words import printable, several
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.terminal import shows_colour
from hivemind_addon.tools.commands.group import ListGroup
from hivemind_addon.tools.commands.printing import Format, Row, format_option, json_flag, print_json, print_rows
from hivemind_addon.tools.commands.times import SOME_TIME, shown

_GLOB = re.compile(r"[*?\[]")
_BUNDLE = "bundle"


@click.group(cls=ListGroup)
def context() -> None:
    """Read the conversations of your agents, and go on with them.

    \b
    Examples:
      hivemind context                    what was kept, as a tree
      hivemind context show 3f9c          read the newest version, or 3f9c@2
      hivemind context search "429"       where something was said
      hivemind context resume 3f9c        go on in a new process, behind the proxy
    """


context.add_command(resume)
context.add_command(recall)


# Read -----------------------------------------------------------------------------------------------------------------


@context.command(name="list")
@click.argument("context_id", metavar="[ID]", required=False)
@click.option("--agent", metavar="GLOB", default="*", help="Only those of these agents.")
@asks
@format_option
def list_(context_id: str | None, agent: str, store: ContextStore, port: int, form: Format) -> None:
    """List conversations, sub-agents below the session that started them; of ID its versions.

    How full a model's context window is, and how long the provider's cache stays warm, is what a running proxy knows.

    \b
    Examples:
      hivemind context list
      hivemind context list 3f9c
      hivemind context list --agent 'reviewer-*'
      hivemind context list --json | jq -r '.[].id'
    """
    now = SystemClock().wall()
    words = {**WORDS, "kept_wall": lambda wall: shown(wall, now)}
    if context_id is not None:
        versions = [row(head) for head in store.versions(context_id)]
        print_rows(versions, _filled(VERSION_COLUMNS, versions), form, words=words, spare=("model",))
        return
    heads = [head for head in store.heads() if names_agent(agent, head.agent)]
    places = tree(heads)
    rows = list(tree_rows(places, pressures(port) if heads else {}))
    if form is Format.TABLE:
        rows = [{**one, "id": f"{place.rails}{place.head.id}"} for one, place in zip(rows, places, strict=True)]
    whose = "" if agent == "*" else f" of {agent}"
    none = f"no contexts{whose} in {store.folder}"
    print_rows(rows, _filled(COLUMNS, rows), form, none=none, words=words, spare=SPARE)


def _filled(columns: Mapping[str, str], rows: Sequence[Row]) -> dict[str, str]:
    """Those in which there is something."""
    return {key: name for key, name in columns.items() if any(one[key] not in (None, "", 0) for one in rows)}


@context.command()
@ref_argument
@click.option("--full", is_flag=True, help="Show everything, also what the model was instructed.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON: head, headers, body and answer.")
@asks
def show(ref: ContextRef, store: ContextStore, *, full: bool, as_json: bool) -> None:
    """Read a conversation: who said what, which tools were called. ID may be its beginning.

    \b
    Examples:
      hivemind context show 3f9c01ab2e
      hivemind context show 3f9c@2
      hivemind context show 3f9c --full | less -R
      hivemind context show 3f9c --json | jq .body.messages[-1]
    """
    found = store.read(ref.id, ref.version)
    if as_json:
        values = msgspec.structs.asdict(found) | {"answer": found.answer.decode(errors="replace")}
        click.echo(msgspec.json.format(msgspec.json.encode(values)))
        return
    for line in view.lines(found, full=full, versions=store.versions(found.head.id)):
        click.secho(line, bold=True) if line.startswith(view.RULE) else click.echo(line)


@context.command()
@click.argument("before", metavar="ID[@N]", type=ContextRefType())
@click.argument("after", metavar="[ID[@M]]", type=ContextRefType(), required=False)
@click.option("--full", is_flag=True, help="Show every message, however many came or went.")
@json_flag
@asks
def diff(before: ContextRef, after: ContextRef | None, store: ContextStore, *, full: bool, as_json: bool) -> None:
    """Tell what came, went and changed between two versions; of ID alone, its last two.

    \b
    Examples:
      hivemind context diff 3f9c
      hivemind context diff 3f9c@2 3f9c@7
      hivemind context diff 3f9c@2 --json | jq '.runs[].change'
    """
    old, new = _both(store, before, after)
    found = difference(old, new)
    if as_json:
        print_json(found)
        return
    for line in difference_lines(found, width=shutil.get_terminal_size().columns, full=full):
        click.secho(line, fg={"+": "green", "-": "red"}.get(line[:1]) if shows_colour() else None)


@context.command()
@click.argument("text")
@click.option("--agent", metavar="GLOB", default="*", help="Only in what these agents said and heard.")
@click.option("--most", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many hits.")
@asks
@format_option
def search(text: str, agent: str, most: int, store: ContextStore, form: Format) -> None:
    """Find where a text was said, in whatever case: the newest conversation first, each message once.

    \b
    Examples:
      hivemind context search "connection refused"
      hivemind context search deadlock --agent 'reviewer-*' --most 100
      hivemind context search TODO --json | jq -r '.[].id' | uniq
    """
    if not text.strip():
        raise click.UsageError("an empty text is everywhere: name some words")
    found = (hit for hit in store.search(text) if names_agent(agent, hit[0].agent))
    hits = list(islice(found, most + 1))
    rows = [
        {
            "id": head.id,
            "version": head.version,
            "agent": head.agent,
            "message": index + 1,
            "kept_wall": head.kept_wall,
            "excerpt": " ".join(excerpt.split()),
        }
        for head, index, excerpt in hits[:most]
    ]
    if form is not Format.TABLE:
        print_rows(rows, {}, form)
        return
    if not rows:
        click.echo(f"{text!r} is in none of them: {store.folder}")
    for head, index, excerpt in hits[:most]:
        place = f"{head.id}@{head.version} message {index + 1}"
        click.secho(f"{place}, {printable(head.agent)}, {view.local(head.kept_wall)}", bold=True)
        click.echo(f"  {printable(' '.join(excerpt.split()))}")
    if len(hits) > most:
        click.echo(f"(the {most} newest; --most {10 * most} shows more)")


# Go on ----------------------------------------------------------------------------------------------------------------


@context.command(name="export")
@ref_argument
@click.option(
    "--as",
    "form",
    type=click.Choice([*(form.value for form in ExportForm), _BUNDLE]),
    required=True,
    help="claude-code, codex: a session that it resumes. api: the request's JSON. text: Markdown for any agent. "
    "bundle: all versions, and those of its sub-agents, for `hivemind context import` on another machine.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this new file.")
@click.option("--write", is_flag=True, help="Write it to where its agent looks for sessions. Overwrites nothing.")
@project_option
@click.option("--json", "as_json", is_flag=True, help="Tell what was written, and how to go on, as JSON.")
@asks
def export_(
    ref: ContextRef,
    form: str,
    output: Path | None,
    project: Path,
    store: ContextStore,
    *,
    write: bool,
    as_json: bool,
) -> None:
    """Give a conversation back in a form that can be continued; on standard output without -o and --write.

    \b
    Examples:
      hivemind context export 3f9c --as claude-code --write --cwd ~/project
      hivemind context export 3f9c --as codex --write
      hivemind context export 3f9c --as api -o body.json
      hivemind context export 3f9c --as text | claude -p
      hivemind context export 3f9c --as bundle -o 3f9c.contexts
    """
    if write and output:
        raise click.UsageError("--write and -o name two places; choose one of them")
    if form == _BUNDLE:
        exported = Export(bundle(_bundled(store, ref)), command="hivemind context import FILE")
    else:
        found = store.read(ref.id, ref.version)
        exported = export(found, ExportForm(form), project=project.resolve(), environment=os.environ)
    if write:
        if exported.place is None:
            raise click.UsageError(f"--write is for claude-code and codex; name a file for {form} with -o FILE")
        output = exported.place
    if output is None:
        if as_json:
            raise click.UsageError("--json tells of a file: name one with -o, or say --write")
        if form == _BUNDLE and sys.stdout.isatty():
            raise click.UsageError(f"a bundle is no text; name a file with -o {ref.id}.contexts")
        _print(exported)
        return
    write_new(output, exported.content)
    command = exported.command.replace("FILE", shlex.quote(str(output)))
    if as_json:
        click.echo(msgspec.json.encode({"file": str(output), "session": exported.session, "command": command}))
        return
    click.echo(f"written: {output}")
    if command:
        moved = exported.place not in (None, output)
        where = f", once it is {exported.place}" if moved else ""
        click.echo(f"go on with{where}: {command}")


@context.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_flag
@asks
def import_(file: Path, store: ContextStore, *, as_json: bool) -> None:
    """Take in the conversations of a bundle, as if this machine's proxy had kept them. What is here already stays.

    \b
    Examples:
      hivemind context import 3f9c.contexts
      hivemind context import 3f9c.contexts && hivemind context resume 3f9c
    """
    ids = {found.head.id: found.head for found in read_bundle(file)}  # all of it is checked before any is kept
    known = {one.id: store.versions(one.id) for one in store.heads() if one.id in ids}
    kept = [store.keep(found).id for found in new_versions(read_bundle(file), known)]
    if as_json:
        print_json([{"id": one, "agent": head.agent, "new_versions": kept.count(one)} for one, head in ids.items()])
        return
    for one, head in ids.items():
        new = kept.count(one)
        what = several(new, "version") if new else "nothing new"
        click.echo(f"{one} of {printable(head.agent)}: {what}; `hivemind context resume {one}` goes on with it")


# Remove ---------------------------------------------------------------------------------------------------------------


@context.command()
@click.argument("ids", metavar="[ID|GLOB]...", nargs=-1)
@click.option("--agent", metavar="GLOB", help="Only those of these agents; without ids, all of them.")
@click.option(
    "--older-than", "age_s", type=SOME_TIME, metavar="SPAN", help="Only those that were kept before: 7d, 12h."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@asks
def rm(ids: tuple[str, ...], agent: str | None, age_s: float | None, store: ContextStore, *, yes: bool) -> None:
    """Remove conversations with all their versions. Says which, and asks once.

    \b
    Examples:
      hivemind context rm 3f9c
      hivemind context rm --older-than 7d --yes
      hivemind context rm '*' --agent 'reviewer-*'
    """
    if not ids and agent is None and age_s is None:
        raise click.UsageError("say which: ids, '*', --agent or --older-than")
    heads = store.heads()
    chosen = list(_chosen(heads, ids or ("*",)))
    now = SystemClock().wall()
    chosen = [
        head
        for head in chosen
        if (agent is None or names_agent(agent, head.agent)) and (age_s is None or now - head.kept_wall > age_s)
    ]
    if not chosen:
        click.echo(f"none of the {several(len(heads), 'context')} in {store.folder} is meant; nothing was removed")
        return
    if not yes:
        for head in chosen[:10]:
            task = f", {printable(head.task)}" if head.task else ""
            click.echo(
                f"{head.id} of {printable(head.agent)}{task}: {several(head.messages, 'message')}, "
                f"kept {view.local(head.kept_wall)}"
            )
        if len(chosen) > 10:
            click.echo(f"… and {len(chosen) - 10} more")
        click.confirm(f"remove {several(len(chosen), 'conversation')} for good?", abort=True)
    removed = 0
    for head in chosen:
        with suppress(UnknownContext):  # another one removed it meanwhile
            store.remove(head.id)
            removed += 1
    while store.trim(now):
        pass
    click.echo(f"removed: {several(removed, 'conversation')}")


# What they share ------------------------------------------------------------------------------------------------------


def _print(exported: Export) -> None:
    """To standard output; what to do with it, to the terminal beside it."""
    click.echo(exported.content, nl=exported.content[-1:] not in (b"\n", b"") and exported.command[:8] != "hivemind")
    if exported.place is not None:
        click.echo(f"--write puts it to where it is resumed from, {exported.place}", err=True)
    elif exported.command and not sys.stdout.isatty():
        click.echo(f"send it with: {exported.command.replace('FILE', '-')}", err=True)


def _both(store: ContextStore, before: ContextRef, after: ContextRef | None) -> tuple[Context, Context]:
    """The contexts to compare; those that are not named are the last one, and the one before it."""
    if after is not None:
        return store.read(before.id, before.version), store.read(after.id, after.version)
    versions = [head.version for head in store.versions(before.id)]
    if before.version is not None:
        return store.read(before.id, before.version), store.read(before.id)
    if len(versions) < 2:
        raise click.ClickException(
            f"{before.id} has one version; name another one to compare it with: {before.id}@{versions[-1]} ID@M"
        )
    return store.read(before.id, versions[-2]), store.read(before.id, versions[-1])


def _bundled(store: ContextStore, ref: ContextRef) -> Iterator[Context]:
    """A version where one is named, else all, with those of its sub-agents."""
    newest = store.read(ref.id, ref.version)
    if ref.version is not None:
        yield newest
        return
    for head in family(newest.head, store.heads()):
        for version in store.versions(head.id):
            with suppress(UnknownContext):  # it was deleted meanwhile
                yield store.read(head.id, version.version)


def _chosen(heads: Sequence[ContextHead], ids: Iterable[str]) -> Iterator[ContextHead]:
    """Each context that one of these means, once. Raises UnknownContext."""
    chosen: dict[str, ContextHead] = {}
    for one in ids:
        if _GLOB.search(one):
            chosen |= {head.id: head for head in heads if fnmatchcase(head.id, one)}
            continue
        if "@" in one:
            raise click.UsageError(f"{one}: a conversation is removed with all its versions; leave out the @N")
        found = [head for head in heads if head.id == one] or [head for head in heads if head.id.startswith(one)]
        if len(found) != 1 or not one:
            what = f"may be {' or '.join(head.id for head in found[:5])}" if found else "is none of the contexts"
            raise UnknownContext(f"{one!r} {what}; `hivemind context list` shows them")
        chosen[found[0].id] = found[0]
    yield from chosen.values()
