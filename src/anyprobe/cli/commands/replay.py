"""``anyprobe replay``."""

from typing import Any

import click

from anyprobe.cli.syntax import addresses, helping, options


@click.command("replay", cls=helping.Command)
@options.archive
@click.option("--slower-than", "slower", type=options.Time(), metavar="TIME", help="Only calls that took longer: 1ms.")
@click.option(
    "--within", metavar="FUNCTION", help="Only calls of a function (* and ? may stand in it), and what it calls."
)
@click.option("--function", "only", metavar="FUNCTION", help="Only calls of these functions.")
@click.option(
    "--where",
    metavar="EXPR",
    help="Only calls for whose values ('record --with') this holds: \"size > 4096 and 'tmp' in path\".",
)
@click.option("--depth", type=options.Whole(1), metavar="N", help="Only calls in fewer than N others.")
@click.option(
    "--tid", "tids", type=options.Whole(1), multiple=True, metavar="TID", help="Only of this thread; repeatable."
)
@click.option(
    "--range",
    "span",
    type=options.Span(),
    metavar="FROM..TO",
    help="Only calls that were under way in this time, from the beginning of the recording: 1.5s..2s.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["perfetto", "speedscope", "arrow", "parquet", "otlp"]),
    help="A timeline for ui.perfetto.dev or speedscope.app, a table with a row for each call, spans (OpenTelemetry).",
)
@click.option(
    "--split-size",
    "split_mib",
    type=options.Whole(1),
    metavar="MIB",
    help="With --format perfetto: files of about that size, RUN-1.pftrace, RUN-2.pftrace, ...",
)
@click.option(
    "--push",
    type=addresses.Url(),
    metavar="URL",
    help="Send the calls to a collector of OpenTelemetry, as spans: http://localhost:4318/v1/traces.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line, for each call.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write there.")
def command(archive: str, **settings: Any) -> int:  # noqa: ANN401
    """Show the calls of a recording: indented, with durations, in the order of time.

    A call that has ended without a return, by an exception or longjmp, is shown as such, with the time by which it had.

    \b
    anyprobe record 'a.out:*' -o run.aprobe -- ./program
    anyprobe replay run.aprobe
    anyprobe replay run.aprobe --slower-than 1ms --within handle_request
    anyprobe replay run.aprobe --format perfetto -o run.pftrace
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli.events import replaying

    if settings["push"] and (settings["form"] or settings["as_json"] or settings["output"] or settings["split_mib"]):
        raise click.UsageError(
            "--push sends the calls, and writes nothing: without --format, --json, --output and --split-size"
        )
    return replaying.replay(archive, replaying.Wanted(**settings))
