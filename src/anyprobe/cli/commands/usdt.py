"""``anyprobe usdt``: USDT probes for programs in C and C++, and descriptions of virtual markers."""

import sys

import click

from anyprobe.cli.syntax import helping


@click.group("usdt")
def command() -> None:
    """Make USDT probes for C and C++, and check descriptions of virtual ones."""


@command.command("header", cls=helping.Command)
@click.argument("path", metavar="PROVIDER.d", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("-o", "--output", metavar="FILE", default="-", help="where the header goes; otherwise it is printed")
def header(path: str, output: str) -> None:
    """Print a C header with the probes that a DTrace provider file declares.

    For each probe there is a macro MYAPP_REQUEST_START(…), and MYAPP_REQUEST_START_ENABLED(), which says whether a tool
    listens. The header needs no other file. Python programs have anyprobe.usdt.Provider.

    \b
    anyprobe usdt header myapp.d -o myapp_probes.h
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.core.errors import UsageError
    from anyprobe.usdt.header import header as made
    from anyprobe.usdt.providerfile import parse_provider_file

    try:
        with click.open_file(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    shown = "<stdin>" if path == "-" else path
    content = made(parse_provider_file(text, shown), shown.rpartition("/")[2])
    if output == "-":
        click.echo(content, nl=False, file=sys.stdout)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from error


@command.command("check", cls=helping.Command)
@click.argument("path", metavar="DESCRIPTION.toml", type=click.Path(exists=True, dir_okay=False))
@click.argument("binaries", metavar="[BINARY]...", nargs=-1, type=click.Path(exists=True, dir_okay=False))
def check(path: str, binaries: tuple[str, ...]) -> int:
    """Prove a description of virtual USDT markers against the files that it describes.

    The file of the build is looked for among BINARY, or where commands and libraries are. The exit status is 1 if it is
    not there, or if one of the places is not.

    \b
    anyprobe usdt check mine.toml /opt/app/bin/server
    """  # noqa: D301 - click's mark for lines that stay as they are
    from anyprobe.cli import ExitStatus
    from anyprobe.cli.terminal.output import say
    from anyprobe.probes.providers.usdt.checking import checked
    from anyprobe.probes.providers.usdt.descriptions import read_description

    holds = True
    for described in read_description(path):
        found = checked(described, binaries)
        holds &= found.holds
        if not found.path:
            say(f"{described.name or 'a file'}: no file has build-id {described.build_id}")
            for other in found.others:
                say(f"  {other}")
            continue
        good = sum(not each.problem for each in found.markers)
        say(f"{found.path}: {good} of {len(found.markers)} places hold")
        for each in found.markers:
            arguments = ", ".join(f"{one.name} = {one.text}" for one in each.marker.arguments)
            name = f"{each.marker.provider}:{each.marker.name}".replace("__", "-")
            where = f"{each.marker.place.text} at {each.address:#x}" if each.address else each.marker.place.text
            say(f"  {name}  {where}: {each.problem or each.instruction}  ({arguments})")
    return ExitStatus.DONE if holds else ExitStatus.NOT_PERMITTED
