"""``anyprobe schema``: what the JSON of a command looks like."""

import json
import sys
from importlib import resources

import click

from anyprobe.cli.syntax import helping

SUFFIX = ".json"
_SHARED: dict[str, tuple[str, list[str]]] = {
    "count": ("snapshot", []),
    "time": ("snapshot", ["functions"]),
    "cover": ("snapshot", ["modules", "files"]),
    "locks": ("snapshot", ["locks"]),
    "offcpu": ("snapshot", ["stacks"]),
    "hist": ("snapshot", ["aggregations"]),
    "inject": ("snapshot", ["injected", "injections", "calls"]),
    "replace": ("snapshot", ["replaced"]),
    "optimise": ("snapshot", ["before_ns", "after_ns", "interval", "kept", "reason"]),
    "script": ("snapshot", ["aggregations"]),
    "show": ("snapshot", []),
    "merge": ("snapshot", []),
    "enable": ("switched", []),
    "disable": ("switched", []),
}
"""Commands whose documents have one form: the schema of the form, and which members this command's always have."""


def kinds() -> list[str]:
    """Return the commands whose JSON has a schema."""
    folder = resources.files("anyprobe.cli").joinpath("schemas")
    files = {each.name.removesuffix(SUFFIX) for each in folder.iterdir() if each.name.endswith(SUFFIX)}
    return sorted(files - {form for form, _ in _SHARED.values()} | set(_SHARED))


def text_of(kind: str) -> str:
    """Return the schema of a command's JSON, made of that of its form where commands share one."""
    form, always = _SHARED.get(kind, (kind, []))
    text = resources.files("anyprobe.cli").joinpath("schemas", form + SUFFIX).read_text("utf-8")
    document = json.loads(text.replace("COMMAND", kind))
    if always:
        for part in (document, document["$defs"]["results"]):
            part["required"] += always
    return json.dumps(document, indent=1) + "\n"


@click.command("schema", cls=helping.Command)
@click.argument("kind", metavar="[COMMAND]", required=False)
def command(kind: str | None) -> None:
    """Print the JSON schema of a command's documents (draft 2020-12); without a command, which there are.

    Later versions may add members, and take none away.

    \b
    anyprobe schema count
    """  # noqa: D301 - click's mark for lines that stay as they are
    known = kinds()
    if kind is None:
        click.echo("\n".join(known), file=sys.stdout)
    elif kind in known:
        click.echo(text_of(kind), nl=False, file=sys.stdout)
    else:
        raise click.UsageError(f"there is no schema of {kind!r}; there are {', '.join(known)}")
