"""``anyprobe serve``."""

import ipaddress
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import addresses, helping, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot


@click.command("serve", cls=helping.Command, starts=True)
@options.specs
@click.option(
    "--listen",
    type=addresses.Address(),
    default="127.0.0.1:9464",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Where to answer scrapes; port 0 is any that is free.",
)
@click.option(
    "--top",
    type=options.Whole(0),
    default=100,
    show_default=True,
    metavar="N",
    help="So many functions have series of their own, 0 for all; the rest is one, 'other'.",
)
@click.option(
    "--push",
    type=addresses.Url(),
    metavar="URL",
    help="Also send metrics to a collector of OpenTelemetry, by OTLP over HTTP: http://localhost:4318/v1/metrics.",
)
@click.option(
    "--push-every",
    type=options.Seconds(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How often; once more at the end.",
)
@click.option("--exponential", is_flag=True, help="With --push: exponential histograms, with bounds 9 % apart.")
@click.option("--hits", is_flag=True, help="Count hits of places, as count does, instead of timing functions.")
@options.pending
@options.processes
@options.recording
@click.pass_obj
def command(
    program: tuple[str, ...], /, specs: tuple[str, ...], pids: Any, names: Any, listen: tuple[str, int], top: int,  # noqa: ANN401
    push: str | None, push_every: float, exponential: bool, hits: bool, **settings: Any,  # noqa: ANN401
) -> int:  # fmt: skip
    """Offer calls and latencies of functions to Prometheus, until Ctrl-C.

    \b
    anyprobe serve 'libssl:SSL_*' -p 4242
    anyprobe serve 'a.out:*' -n nginx --top 50 --listen 127.0.0.1:9101
    anyprobe serve --hits kernel::vfs_read
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.handlers import conditional
    from anyprobe.cli.measurement import measuring
    from anyprobe.cli.network.serving import Server
    from anyprobe.cli.programs import targets

    if exponential and push is None:
        raise click.UsageError("--exponential is about what --push sends")
    target = targets.choose(pids, names, program, specs, **targets.selected(settings))
    how = (conditional.Counts if hits else conditional.Times).of(None, pending=settings["pending"])
    sent = None if push is None else (push, push_every)
    with closing(Server(listen, top, how.seen, limit=settings["max_overhead"], push=sent,
                        exponential=exponential)) as server:  # fmt: skip
        if not ipaddress.ip_address(listen[0]).is_loopback and not settings["quiet"]:
            server.warn(f"all who reach {server.place} can read the names of functions and how often they are called")
        output = settings["output"] or ""
        plan = measuring.Plan(
            specs=target.read(specs),
            arm=how.arm,
            seen=how.seen,
            render=renderer(by=None, tree=False),
            format="archive" if output.endswith(helping.ARCHIVES) else None,
            spaced=False,
            front=server,
            again=True,
            **settings,
        )
        return measuring.measure(target, plan)


def renderer(*, by: str | None, tree: bool) -> "Callable[[Snapshot, Console, int], None]":
    """Return what prints results that were kept: as ``time`` does, which shows hits of places, too."""
    from anyprobe.cli.commands import count, time

    def render(snapshot: "Snapshot", console: "Console", top: int) -> None:
        (time if snapshot.functions else count).renderer(by=by, tree=tree)(snapshot, console, top)

    return render
