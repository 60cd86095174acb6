"""``-H``: a command runs on hosts by SSH, and the archives that come back are shown for each host and added up."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.archives import showing
from anyprobe.cli.network import remote, sending
from anyprobe.cli.syntax import helping
from anyprobe.cli.terminal import output
from anyprobe.core.errors import UsageError
from anyprobe.core.printable import printable
from anyprobe.data.archives.runs import Run, merged, read

HERE = frozenset(
    {"hosts", "hosts_file", "remote", "send", "output", "format", "nonzero", "buckets", "fold", "top", "full_names"}
)
"""Options of how results are shown, which is done here."""
NOT_ON_HOSTS = {
    "fail_under": "--fail-under is of one machine: see what has run on all by -o ALL.aprobe",
    "annotate": "--annotate reads sources, which are on the hosts: --format lcov has the lines of all",
    "dump_when": "--dump-when writes files of its own, which would stay on the hosts",
    "every": "--every is of one machine: intervals of hosts begin and end at different moments",
    "heat": "--heat is over time, and intervals of hosts begin and end at different moments",
}
_UNUSABLE = re.compile(r"[^\w.@+-]")
"""What names of files do not have that are made of names of hosts."""
SHOWN = ("output", "format", "quiet", "nonzero", "buckets", "fold", "top", "full_names")


def measure(
    command: click.Command, context: click.Context, given: Sequence[str], file: str | None, how: str | None,
    send: bool,
) -> int:  # fmt: skip
    """Run a command on hosts, and show the results of each and their sum; return the exit status.

    Args:
        command: the command.
        context: its context: the options, and in ``obj`` the command to start there.
        given: the values of ``-H``.
        file: the value of ``--hosts``.
        how: the value of ``--remote``.
        send: whether anyprobe is sent there.
    """
    settings: dict[str, Any] = {name: context.params.get(name) for name in SHOWN}
    hosts = list(named(given, file))
    if not hosts:
        option = "--remote" if how else "--send"
        raise click.UsageError("-H names no host" if given else f"{option} is about hosts: -H HOST,... or --hosts FILE")
    for name, why in NOT_ON_HOSTS.items():
        if context.params.get(name):
            raise click.UsageError(why)
    called, specs = command.name, context.params.get("specs") or ()
    if called == "cover" and specs and specs[0] in {"merge", "diff"}:
        raise click.UsageError(f"anyprobe cover {specs[0]} is of documents, not of hosts")
    arguments = list(remote_arguments(command, context))
    parcel = None
    if send:
        if how:
            raise click.UsageError("--send or --remote: what is sent is called by its own name")
        parcel = sending.Parcel(sending.uses_compiler(called or "", context.params))
    how = how or ("anyprobe" if parcel is None else parcel.command)
    if called == "trace":
        return _trace(hosts, how, arguments, settings, parcel)
    kept = str(settings["output"] or "")
    if called == "record" and not kept.endswith(helping.ARCHIVES):
        raise click.UsageError("-o RUN.aprobe: calls are recorded in archives, one of each host")
    answers, interrupted = remote.ask(hosts, script(how, arguments), quiet=settings["quiet"], parcel=parcel)
    if called == "record":
        _keep(answers, kept, quiet=settings["quiet"])
        return _status(answers, interrupted=interrupted)
    runs = {each.host: run for each in answers if (run := _run_of(each)) is not None}
    lost = [each for each in answers if each.lost]
    for each in lost:
        output.warn(f"{each.host}: {each.lost}")
    if runs:
        with output.results(settings["output"], program_owns_output=False) as stream:
            _show(answers, runs, settings, stream)
    return _status(answers, interrupted=interrupted)


def _status(answers: Sequence[remote.Answer], *, interrupted: bool) -> int:
    """Return the exit status for what hosts have answered."""
    if any(each.lost for each in answers):
        wrong = all(each.status == ExitStatus.USAGE for each in answers)
        return ExitStatus.USAGE if wrong else ExitStatus.NOT_PERMITTED
    return ExitStatus.INTERRUPTED if interrupted else max(each.status or 0 for each in answers)


def _keep(answers: Sequence[remote.Answer], path: str, *, quiet: bool) -> None:
    """Write the recording of each host to a file of its own; times in it are of the clock of that host."""
    used = set[str]()
    for each in answers:
        if each.lost:
            output.warn(f"{each.host}: {each.lost}")
            continue
        name = _UNUSABLE.sub("_", each.host)
        while name in used:  # web:22 and web_22
            name += "_"
        used.add(name)
        own = f"{path.removesuffix(helping.ARCHIVES)}.{name}{helping.ARCHIVES}"
        try:
            Path(own).write_bytes(each.archive)
        except OSError as error:
            raise click.FileError(own, error.strerror) from error
        if not quiet:
            output.say(f"{each.host}: {own}; {each.clock}", error=True)


def _trace(
    hosts: Sequence[remote.Host], how: str, arguments: Sequence[str], settings: dict[str, Any],
    parcel: "sending.Parcel | None",
) -> int:  # fmt: skip
    """Print the lines of all hosts as they come, each with its host."""
    as_json = settings["format"] == "json"
    width = max(len(each.text) for each in hosts)
    with output.results(settings["output"], program_owns_output=False) as stream:

        def show(host: str, line: str) -> None:
            if as_json:
                try:
                    document = json.loads(line)
                except ValueError:
                    output.warn(f"{host} has sent what is no document of anyprobe's")
                    return
                output.write_json({"host": host, **document}, stream, one_line=True)
            else:
                stream.write(printable(f"{host:<{width}} {line}") + "\n")
                stream.flush()

        given = [arguments[0], "--json", *arguments[1:]] if as_json else arguments
        line = script_of_lines(how, given)
        answers, interrupted = remote.ask(hosts, line, quiet=settings["quiet"], lines=show, parcel=parcel)
    for each in answers:
        if each.lost:
            output.warn(f"{each.host}: {each.lost}")
    return _status(answers, interrupted=interrupted)


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
            yield from [value] if isinstance(value, str) else value if isinstance(value, tuple | list) else ()
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


def script_of_lines(how: str, arguments: Sequence[str]) -> str:
    """Return the command for a host's shell that sends lines as they come, and ends with the status of anyprobe.

    The lines go through a pipe with a name, since standard output may be a socket, which cannot be opened, or that of a
    started command. The shell opens it with its reader, so that neither waits for an anyprobe that never writes.
    """
    name, *rest = map(shlex.quote, arguments)
    lines = (
        "d=$(mktemp -d) || exit 1",
        "trap 'rm -rf \"$d\"' EXIT",
        'mkfifo "$d/lines" || exit 1',
        "exec 3<&0",
        'cat "$d/lines" 3<&- & c=$!',
        'exec 4>"$d/lines"',
        f"{how} {name} -o /dev/fd/4 {' '.join(rest)} </dev/null >&2 3<&- &",
        "p=$!",
        "exec 4>&-",
        '{ read -r _; kill -TERM "$p"; } <&3 >/dev/null 2>&1 &',
        "w=$!",
        "exec 3<&-",
        'wait "$p"; s=$?',
        'kill "$w" 2>/dev/null',
        'wait "$c"; exit "$s"',
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
