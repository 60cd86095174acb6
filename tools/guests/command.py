"""The command line of ``tools/guest``."""

import argparse
import sys

from guests.errors import UNAVAILABLE, GuestUnavailable
from guests.image import fetch_headers, image
from guests.machine import Machine, run
from guests.packages import KERNELS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/guest",
        description="Run a shell command in a guest with the host's files (read-only under an overlay; /tmp is shared) "
        "and pass its output and exit status on. 125: the guest cannot be had here; 124: time is up; 123: it died.",
    )
    parser.add_argument("-k", "--kernel", choices=KERNELS, default="6.12", help="Debian's (default %(default)s)")
    parser.add_argument("-s", "--processors", type=int, default=2, help="how many (default %(default)s)")
    parser.add_argument("-m", "--memory", default="3G", help="default %(default)s")
    parser.add_argument("-t", "--seconds", type=float, default=600, help="time for all of it (default %(default)g)")
    parser.add_argument("-a", "--arguments", default="", help="more of the kernel's command line")
    parser.add_argument("--icount", action="store_true", help="one processor that counts: 1 ns is one instruction")
    parser.add_argument("--parallel", action="store_true", help="a thread for each processor; the kernel may die of it")
    parser.add_argument(
        "--make", action="store_true", help="only make the guest where it is not there yet, and its headers"
    )
    parser.add_argument("--fresh", action="store_true", help="make the guest anew, with the newest kernel")
    parser.add_argument("command", nargs="?", help="for bash, in the same directory")
    return parser


def main() -> int:
    """Run the command; return the exit status."""
    parser = _parser()
    given = parser.parse_args()
    if not given.make and given.command is None:
        parser.error("no command")
    try:
        made = image(given.kernel, again=given.fresh)
        if given.command is None:
            fetch_headers(made)
            print(made.folder)
            return 0
        machine = Machine(given.processors, given.memory, given.icount, given.parallel, given.arguments, given.seconds)
        return run(machine, made, given.kernel, given.command)
    except GuestUnavailable as reason:
        print(f"no guest: {reason}", file=sys.stderr)
        return UNAVAILABLE
