"""``anyprobe schema``: what the JSON of a command looks like."""

import importlib
import json
import sys
from importlib import resources
from typing import Any

import click

from anyprobe.cli.syntax import helping
from anyprobe.core.documents import Members, schema_of

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

_WHOLE = "not in results"
"""The definition that lists which members the document has, and those of its parts have not."""


def _filled(schema: Any) -> Any:  # noqa: ANN401 - a schema, or a part of one
    """Return a schema with what ``made of`` names in it: members that are declared where values have them."""
    if isinstance(schema, list):
        return [_filled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _filled(each) for name, each in schema.items() if name != "made of"}
    if "made of" not in schema:
        return found
    module, _, name = schema["made of"].rpartition(".")
    kind = getattr(importlib.import_module(f"anyprobe.{module}"), name)
    made = kind.schema if isinstance(kind, Members) else schema_of(kind)
    properties = {**made["properties"], **found.get("properties", {})}
    required = [*made["required"], *found.get("required", [])]
    return {**found, **made, **found, "properties": properties, "required": required}


def kinds() -> list[str]:
    """Return the commands whose JSON has a schema."""
    folder = resources.files("anyprobe.cli").joinpath("schemas")
    files = {each.name.removesuffix(SUFFIX) for each in folder.iterdir() if each.name.endswith(SUFFIX)}
    return sorted(files - {form for form, _ in _SHARED.values()} | set(_SHARED))


def text_of(kind: str) -> str:
    """Return the schema of a command's JSON, made of that of its form where commands share one."""
    form, always = _SHARED.get(kind, (kind, []))
    text = resources.files("anyprobe.cli").joinpath("schemas", form + SUFFIX).read_text("utf-8")
    document = _filled(json.loads(text.replace("COMMAND", kind)))
    parts = document.get("$defs", {})
    if _WHOLE in parts:  # of one of several processes: what is of all processes together is not in it
        own = {name: each for name, each in document["properties"].items() if name not in parts[_WHOLE]}
        parts["results"] = {"type": "object", "properties": own, "required": list(document["required"])}
        del parts[_WHOLE]
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
