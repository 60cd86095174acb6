"""``anyprobe cache``: what is kept on disk so that later starts are quick."""

import re
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.syntax import helping, options
from anyprobe.cli.terminal import output
from anyprobe.core import kept

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyprobe.core.kept import Entry

_KIND = re.compile(r"(?:[0-9a-f]{8,}-)?(?P<kind>[a-z][a-z-]*?)(?:-[0-9a-f]+)?(?:\.\w+)?|(?P<other>.*)")
"""A build-id, what is kept of it, and the version of its form; or a kind, and of what."""


@click.command("cache", cls=helping.Command)
@click.option(
    "--clear", is_flag=True, help="Remove all of it: the next start of each program takes as long as its first."
)
@options.json
def command(*, clear: bool, as_json: bool) -> int:
    """Show what is kept on disk so that later starts are quick, or remove it.

    Symbols, code and plans of programs and libraries, by their build-ids. It is never needed, never trusted where it is
    damaged, and what was not used for longest goes where there is too much. Another user's is not read.

    \b
    anyprobe cache
    anyprobe cache --clear
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.binary.objects.cache import SIZE_LIMIT

    try:
        found = kept.clear() if clear else kept.entries()
    except OSError as error:
        output.warn(f"{kept.directory()}: {error.strerror}")
        return ExitStatus.NOT_PERMITTED
    size = sum(each.size for each in found)
    kinds = _by_kind(found)
    if as_json:
        document = {
            "folder": kept.directory(),
            "cleared": clear,
            "entries": len(found),
            "bytes": size,
            "limit": SIZE_LIMIT,
            "oldest": min((each.written for each in found), default=None),
            "kinds": [
                {"kind": kind, "entries": len(each), "bytes": sum(one.size for one in each)}
                for kind, each in kinds.items()
            ],
        }
        output.write_json(document, sys.stdout)
        return ExitStatus.DONE
    did = "removed" if clear else "kept"
    click.echo(f"{kept.directory()}: {len(found):,} files {did}, {_mib(size)} of {_mib(SIZE_LIMIT)} at most")
    if found and not clear:
        days = (time.time() - min(each.written for each in found)) / 86400
        click.echo(f"the oldest was last used {days:.0f} days ago")
        click.echo()
        for kind, each in kinds.items():
            click.echo(f"{_mib(sum(one.size for one in each)):>9}  {len(each):>6,}  {kind}")
    return ExitStatus.DONE


def _by_kind(found: "Iterable[Entry]") -> "dict[str, list[Entry]]":
    """Return the files of each kind, those first that take most room."""
    kinds = defaultdict(list)
    for each in found:
        match = _KIND.fullmatch(each.name)
        kinds[(match and match["kind"]) or "other"].append(each)
    return dict(sorted(kinds.items(), key=lambda item: -sum(one.size for one in item[1])))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
