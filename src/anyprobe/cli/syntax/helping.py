"""Help pages: where the command to start goes, options in groups, no jargon of types."""

import importlib
import re
from typing import Any

import click

from anyprobe.cli.syntax import options

GROUPS = {
    "Target": ("pids", "names", "everywhere", "hosts", "hosts_file", "remote", "send"),
    "What is measured": (
        "hot",
        "when",
        "of",
        "by",
        "kind",
        "capacity",
        "printed",
        "parameters",
        "clock",
        "self_time",
        "tree",
        "raw",
        "unsafe",
    ),
    "When it ends": ("seconds", "most", "at_end", "exit_status"),
    "Results": (
        "as_json",
        "format",
        "every",
        "heat",
        "nonzero",
        "buckets",
        "top",
        "fold",
        "full_names",
        "output",
        "quiet",
    ),
    "How probes are placed": ("strategy", "returns", "live", "maxactive", "max_overhead", "max_setup", "at_once"),
}
"""Options by their parameters' names. What is in none of them is the command's own, and comes first."""
ARCHIVES = ".aprobe"
"""How the names of archives end."""
_RANGE = r"(?:; )?(?:\d[\d.]*<=?x(?:<=?\d[\d.]*)?|x[<>]=?\d[\d.]*)(?=\])"
SPEC_POINTER = "SPEC is module:function, with globs, and %return, +0x1c, %insn, ...: see 'anyprobe help specs'."


class Command(click.Command):
    """A command whose help page shows the command to start, and its options in groups."""

    def __init__(self, *arguments: Any, starts: bool = False, **settings: Any) -> None:  # noqa: ANN401 - click's
        """``starts``: whether it starts what follows ``--``."""
        super().__init__(*arguments, **settings)
        self.starts = starts

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; results that go to a file of archives are one."""
        rest = super().parse_args(ctx, args)
        if "%r" in str(ctx.params.get("output") or ""):
            ctx.params["output"] = ctx.params["output"].replace("%r", _rank(ctx))
        if str(ctx.params.get("output") or "").endswith(ARCHIVES) and ctx.params.get("format", "") is None:
            if not any(isinstance(each.type, options.Format) for each in self.params):
                raise click.UsageError(
                    f"anyprobe {self.name} has no results that an archive ({ARCHIVES}) could keep", ctx
                )
            ctx.params["format"] = "archive"
        return rest

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's
        """Run here, or on the hosts that are named."""
        named = [ctx.params.pop(name, None) for name in ("hosts", "hosts_file", "remote", "send")]
        if not any(named):
            return super().invoke(ctx)
        return importlib.import_module("anyprobe.cli.network.hosts").measure(self, ctx, *named)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the parts of the usage line."""
        pieces = super().collect_usage_pieces(ctx)
        return [*pieces, "[-- COMMAND...]"] if self.starts else pieces

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in their groups."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": [], **{name: [] for name in GROUPS}}
        group_of = {parameter: name for name, parameters in GROUPS.items() for parameter in parameters}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups[group_of.get(parameter.name or "", "Options")].append((record[0], plain(record[1])))
        own = groups.pop("Options")
        for name, records in (*groups.items(), ("Options", own)):
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Point to what a spec is."""
        if any(parameter.name in {"specs", "spec"} for parameter in self.params):
            formatter.write_paragraph()
            formatter.write_text(SPEC_POINTER)
        super().format_epilog(ctx, formatter)


def _rank(ctx: click.Context) -> str:
    """Return the rank of this process, for the names of files."""
    from anyprobe.data.archives.runs import RANKS, this_rank

    rank, _ = this_rank()
    if rank is None:
        *names, last = (name for name, _ in RANKS)
        raise click.UsageError(
            f"%r is the rank under mpirun or srun, and neither {', '.join(names)} nor {last} is set", ctx
        )
    return str(rank)


def plain(text: str) -> str:
    """Return a help text without the bounds of numbers, which errors name."""
    return re.sub(_RANGE, "", text).removesuffix("[]").rstrip()
