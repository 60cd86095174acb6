"""``-H``: a command runs on hosts by SSH, and the archives that come back are shown for each host and added up."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.archives import showing
from anyprobe.cli.network import remote
from anyprobe.cli.terminal import output
from anyprobe.core.errors import UsageError
from anyprobe.data.archives.runs import Run, merged, read

HERE = frozenset(
    {"hosts", "hosts_file", "remote", "output", "format", "nonzero", "buckets", "fold", "top", "full_names"}
)
"""Options of how results are shown, which is done here."""
NOT_ON_HOSTS = {
    "every": "--every is of one machine: intervals of hosts begin and end at different moments",
    "heat": "--heat is over time, and intervals of hosts begin and end at different moments",
}
SHOWN = ("output", "format", "quiet", "nonzero", "buckets", "fold", "top", "full_names")


def measure(command: click.Command, context: click.Context, given: Sequence[str], file: str | None, how: str) -> int:
    """Run a command on hosts, and show the results of each and their sum; return the exit status.

    Args:
        command: the command.
        context: its context: the options, and in ``obj`` the command to start there.
        given: the values of ``-H``.
        file: the value of ``--hosts``.
        how: the value of ``--remote``.
    """
    settings = {name: context.params[name] for name in SHOWN}
    hosts = list(named(given, file))
    if not hosts:
        raise click.UsageError("-H names no host" if given else "--remote is about hosts: -H HOST,... or --hosts FILE")
    for name, why in NOT_ON_HOSTS.items():
        if context.params.get(name):
            raise click.UsageError(why)
    arguments = list(remote_arguments(command, context))
    answers, interrupted = remote.ask(hosts, script(how or "anyprobe", arguments), quiet=settings["quiet"])
    runs = {each.host: run for each in answers if (run := _run_of(each)) is not None}
    lost = [each for each in answers if each.lost]
    for each in lost:
        output.warn(f"{each.host}: {each.lost}")
    if runs:
        with output.results(settings["output"], program_owns_output=False) as stream:
            _show(answers, runs, settings, stream)
    if lost:
        wrong = all(each.status == ExitStatus.USAGE for each in answers)
        return ExitStatus.USAGE if wrong else ExitStatus.NOT_PERMITTED
    return ExitStatus.INTERRUPTED if interrupted else max(each.status or 0 for each in answers)


def named(given: Sequence[str], file: str | None) -> Iterator[remote.Host]:
    """Yield the hosts that options and a file name, each once: a host that counts twice would be a wrong sum."""
    texts = [text.strip() for each in given for text in each.split(",")]
    if file is not None:
        try:
            lines = Path(file).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise click.FileError(file, getattr(error, "strerror", None) or "it is no text in UTF-8") from error
        texts += [line.partition("#")[0].strip() for line in lines]
        if not any(texts):
            raise click.UsageError(f"{file} names no host")
    for text in dict.fromkeys(filter(None, texts)):
        yield remote.Host.of(text)


def remote_arguments(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the arguments of the command on a host: those that were given here, but for how results are shown."""
    arguments = list(context.find_root().meta["anyprobe.arguments"])
    values, rest, order = command.make_parser(context).parse_args(arguments[1:])
    yield command.name or ""
    for parameter in dict.fromkeys(order):
        name = parameter.name or ""
        if name in HERE or not isinstance(parameter, click.Option):
            continue
        option, value = max(parameter.opts, key=len), values[name]
        if not parameter.is_flag:
            yield from (f"{option}={each}" for each in (value if parameter.multiple else [value]))
        elif parameter.secondary_opts and not value:
            yield max(parameter.secondary_opts, key=len)
        elif value in {True, parameter.flag_value}:  # of several that share a name the last one counts
            yield option
    program = context.obj or ()
    if program and context.params.get("at_end") is None:
        yield "--kill"  # whatever ends the session, nothing stays there
    for parameter in dict.fromkeys(order):
        if isinstance(parameter, click.Argument) and values[parameter.name or ""]:
            value = values[parameter.name or ""]
            yield from [value] if isinstance(value, str) else value
    yield from rest
    yield from ("--", *program) if program else ()


def script(how: str, arguments: Sequence[str]) -> str:
    """Return the command for a host's shell. It sends a line, its status and the archive's size, and the archive.

    Standard input is the line of life: when it ends, also because the connection is gone, anyprobe is asked to end.
    Results go to a file that is removed, and not to standard output, which a started command may hold for long.
    """
    name, *rest = map(shlex.quote, arguments)
    lines = (
        "d=$(mktemp -d) || exit 1",
        "trap 'rm -rf \"$d\"' EXIT",
        "exec 3<&0",
        f'{how} {name} -o "$d/run.aprobe" {" ".join(rest)} </dev/null >&2 3<&- &',
        "p=$!",
        '{ read -r _; kill -TERM "$p"; } <&3 >/dev/null 2>&1 &',
        "w=$!",
        "exec 3<&-",
        'wait "$p"; s=$?',
        'kill "$w" 2>/dev/null',
        'f="$d/run.aprobe"; test -f "$f" || f=/dev/null',
        'echo "$s $(wc -c <"$f")" && cat "$f"',
    )
    return f"exec sh -c {shlex.quote('; '.join(lines).replace('&;', '&'))}"


def _run_of(answer: remote.Answer) -> Run | None:
    """Return the results of a host; without any it is lost, and why is said."""
    if answer.lost:
        return None
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".aprobe") as file:
        file.write(answer.archive)
        file.flush()
        try:
            run = read(file.name)
        except UsageError as error:
            answer.lose(str(error).replace(file.name, "what it has sent"))
            return None
    if run.warnings:
        run = replace(run, warnings=tuple(each.replace(file.name, answer.host) for each in run.warnings))
    return run


def _show(answers: Sequence[remote.Answer], runs: Mapping[str, Run], settings: dict[str, Any], stream: TextIO) -> None:
    """Write the results of each host and their sum, or only that where a format has no room for more."""
    together = merged(list(runs.values()))
    lost = ", ".join(f"{each.host} ({each.lost})" for each in answers if each.lost)
    parts = [
        showing.Part(
            f"{each.host}: {each.clock}",
            {
                "host": each.host,
                "lost": each.lost or None,
                "clock_offset_s": each.offset_s,
                "clock_error_s": each.error_s,
            },
            runs.get(each.host),
        )
        for each in answers
    ]
    without = f", without {', '.join(each.host for each in answers if each.lost)}" if lost else ""
    heading = f"sum of {len(runs)} of {len(answers)} hosts{without}"
    showing.show_sum(together, parts, "hosts", heading, settings, stream, missing=lost)
