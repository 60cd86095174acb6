"""Write the manual pages, one for each command, from the texts of its options: manual_pages.py DIRECTORY VERSION."""

import sys
from pathlib import Path

import click
from click_man.core import write_man_pages

from anyprobe.cli import COMMANDS, group

target = Path(sys.argv[1])
target.mkdir(exist_ok=True)
context = click.Context(group, info_name="anyprobe")
# click-man asks a group for what it has imported already
group.commands = {name: command for name in COMMANDS if (command := group.get_command(context, name)) is not None}
write_man_pages("anyprobe", group, version=sys.argv[2], target_dir=str(target))
print(f"{len(list(target.glob('*.1')))} pages in {target}")
