"""``anyprobe enable``: arm again everything that ``disable`` has disarmed."""

from anyprobe.cli.changing.switching import command_of

command = command_of("enable", "Arm again everything that disable has disarmed.", on=True)
