"""``anyprobe disable``: disarm everything that any session has installed in a process, until ``enable``."""

from anyprobe.cli.changing.switching import command_of

command = command_of(
    "disable", "Disarm everything that any session has installed in a process, until enable.", on=False
)
