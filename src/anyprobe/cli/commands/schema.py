"""``anyprobe schema``: what the JSON of a command looks like."""

import sys
from importlib import resources

import click

from anyprobe.cli import helping

SUFFIX = ".json"


def kinds() -> list[str]:
    """Return the commands whose JSON has a schema."""
    folder = resources.files("anyprobe.cli").joinpath("schemas")
    return sorted(each.name.removesuffix(SUFFIX) for each in folder.iterdir() if each.name.endswith(SUFFIX))


def text_of(kind: str) -> str:
    """Return the schema of a command's JSON, as it is in the package."""
    return resources.files("anyprobe.cli").joinpath("schemas", kind + SUFFIX).read_text("utf-8")


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
