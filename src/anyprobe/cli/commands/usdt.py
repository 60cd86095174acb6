"""``anyprobe usdt``: USDT probes for programs in C and C++."""

import sys

import click

from anyprobe.cli import helping


@click.group("usdt")
def command() -> None:
    """Make USDT probes for C and C++ from a DTrace provider file."""


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
