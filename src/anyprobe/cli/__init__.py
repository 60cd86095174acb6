"""The command line: options, progress, output and exit statuses.

In: arguments. Out: reports or JSON documents; this module lists the commands and gives each exception its status.
Must not do what the public API cannot do.
"""

import atexit
import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from enum import IntEnum

import click

from anyprobe.cli.terminal import streams
from anyprobe.core.errors import OutputFailed

COMMANDS = {
    "count": "Count the hits of probes.",
    "time": "Measure how long functions take.",
    "profile": "Show where the time goes, by samples, and which command to run next.",
    "top": "Show on a screen which functions are called and how long they take, as it happens.",
    "serve": "Offer calls and latencies of functions to Prometheus.",
    "trace": "Print a line for each hit.",
    "record": "Record each call, with its beginning and end, for replay and timelines.",
    "replay": "Show recorded calls one by one, or as a timeline for Perfetto and speedscope.",
    "hist": "Show how a value is distributed: parameters, results, latencies.",
    "script": "Run handlers from a Python file.",
    "cover": "Show which blocks and source lines have run.",
    "break": "Stop where a condition holds: stacks, a core file, or gdb.",
    "watch": "Show who writes to some memory, and what.",
    "audit": "Keep a file of opens, programs, credentials, connections, whose lines are chained.",
    "inject": "Have calls of functions fail, or wait: a fault for chosen calls.",
    "replace": "Have calls of functions go to others, also of a shared object that is loaded.",
    "optimise": "Have functions that run most lie side by side, if that makes the program faster.",
    "locks": "Show which locks threads wait for, how long, and who holds them meanwhile.",
    "show": "Show results that were kept in an archive, in any format.",
    "report": "Make one HTML page of an archive: tables, heat maps, flame graph, warnings.",
    "merge": "Add up archives: of processes, machines, parts of a test.",
    "diff": "Show what has changed from one archive to another.",
    "offcpu": "Show where threads sleep, and what for.",
    "metric": "Show over time how many threads are in functions, wait there, or how often these are called.",
    "list": "List what could be probed, and by which strategy.",
    "explain": "Show the plan or the refusals for one site; changes nothing.",
    "probes": "Show what all sessions have installed in a process.",
    "disable": "Disarm everything that is installed in a process, for a while.",
    "enable": "Arm again what was disarmed by disable.",
    "optimize": "Have the probes in a process reached by jumps, or by traps.",
    "detach": "Remove everything that any session has installed in a process.",
    "doctor": "Say what this machine and a target permit, and what to do about what they do not.",
    "usdt": "Make USDT probes for C and C++, and check descriptions of virtual ones.",
    "driver": "Build, load and unload the module with which the kernel's own text is spliced.",
    "cache": "Show what is kept on disk so that later starts are quick, or remove it.",
    "schema": "Print the JSON schema of a command's documents.",
    "help": "Say what a SPEC is (anyprobe help specs), or what a command does.",
}
"""Every command, each a module with a ``command`` of click's: of ``anyprobe.cli.commands``, if not in ``MODULES``."""
MODULES = {"break": "anyprobe.cli.commands.breaking"}
"""The modules of commands that are elsewhere."""
ELSEWHERE = {
    "stat": "count",
    "funccount": "count",
    "stackcount": "count",
    "strace": "trace",
    "ftrace": "trace",
    "dump": "trace",
    "argdist": "hist",
    "live": "top",
    "htop": "top",
    "prometheus": "serve",
    "export": "serve",
    "graph": "time --tree",
    "mutrace": "locks",
    "offcputime": "offcpu",
    "contention": "locks",
    "lock": "locks",
    "funclatency": "time",
    "annotate": "explain",
    "disas": "explain",
    "info": "list",
    "ps": "probes",
    "check": "doctor",
    "remove": "detach",
}
"""What other tools call their commands, and the one of these that answers the same question."""


# What is left at the end goes with the process: a last search for cycles takes a tenth of a short command's time.
atexit.register(gc.freeze)
OBJECTS_BETWEEN_COLLECTIONS = 20_000
"""Python's own number, 700, has cycles searched for all through the imports, a twentieth of a short command's time."""


class ExitStatus(IntEnum):
    """What the shell sees."""

    DONE = 0
    NOT_PERMITTED = 1
    USAGE = 2
    BUG = 3
    INTERRUPTED = 130
    """Ctrl-C has ended it, whose results there are."""


class CommandList(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they were given."""
        ctx.meta["anyprobe.arguments"] = tuple(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the list."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module = MODULES.get(cmd_name, f"anyprobe.cli.commands.{cmd_name}")
        command: click.Command = importlib.import_module(module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command by its name; one that does not exist may be a slip."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
            if name in ELSEWHERE:
                hint = f"; that is 'anyprobe {ELSEWHERE[name]}' here"
            else:
                hint = f"; did you mean {near[0]}?" if near else f"; commands are {', '.join(COMMANDS)}"
            raise click.UsageError(f"No such command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list without importing a single command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=CommandList,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A command's own help: anyprobe COMMAND --help",
)
@click.version_option(package_name="anyprobe")
def group() -> None:
    """Count and time the functions of running Linux programs, and leave no trace.

    Probes are written module:function, with globs: libc:malloc, 'libssl:SSL_*', a.out:main. All of it: anyprobe help
    specs.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. What follows ``--`` is the command to start."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    streams.prepare()
    if "_ANYPROBE_COMPLETE" in os.environ:
        from anyprobe.cli.syntax import completing

        completing.register()
    before, program = split_program(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None and program:
        from anyprobe.target.process import inherited

        inherited.note()
    try:
        status = group.main(args=before, prog_name="anyprobe", standalone_mode=False, obj=program)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        streams.tell(error.format_message())
        return ExitStatus.USAGE
    except click.ClickException as error:
        return complain(misused(error), ExitStatus.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return complain("interrupted", ExitStatus.INTERRUPTED)
    except OutputFailed as error:
        streams.abandon_what_fails()
        if error.errno == errno.EPIPE:  # the reader (head, a pager) has seen enough
            return ExitStatus.DONE
        return complain(str(error), 130 if error.errno == errno.ETIMEDOUT else error.exit_status)
    except Exception as error:  # noqa: BLE001 - the one place where exceptions become exit statuses
        return failed(error)
    return status if isinstance(status, int) else ExitStatus.DONE


def split_program(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the arguments before the first ``--``, and the command after it."""
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def misused(error: click.ClickException) -> str:
    """Return what is wrong with a command line, and where to look."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message}\nhelp: {context.command_path} --help"


def failed(error: Exception) -> int:
    """Print what went wrong and return the status for it."""
    from anyprobe.core.errors import AnyprobeError, InternalError, SourceError

    if os.environ.get("ANYPROBE_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, SourceError) and error.file:
        streams.tell(str(error))  # as compilers do, so that editors find the place
        return error.exit_status
    if isinstance(error, AnyprobeError) and not isinstance(error, InternalError):
        return complain(str(error), error.exit_status)
    return complain(
        f"internal error: {type(error).__name__}: {error}\n"
        "This is a bug in anyprobe. Please report it, with the traceback that ANYPROBE_TRACEBACK=1 prints.",
        ExitStatus.BUG,
    )


def complain(message: str, status: int) -> int:
    """Print a message for the user and return the status."""
    streams.tell(f"anyprobe: {message}")
    return status
