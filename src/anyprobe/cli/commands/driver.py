"""``anyprobe driver``: build, load and unload the module with which the kernel's own text is spliced."""

from typing import TYPE_CHECKING

import click

from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command("driver", cls=helping.Command)
@click.argument("action", type=click.Choice(["build", "load", "unload", "status"]))
@click.option("--release", metavar="RELEASE", help="Build for this kernel instead of the running one (uname -r).")
@click.option("--headers", metavar="DIR", help="The kernel's headers, if not /lib/modules/RELEASE/build.")
@options.json
def command(action: str, release: str | None, headers: str | None, as_json: bool) -> int:
    """Build, load and unload the module with which the kernel's own text is spliced, or say how it is with it.

    build: compile it with the kernel's headers; what is built is kept for each kernel. load: build it if necessary,
    and load it. unload: refused while a session uses it. The device that it makes, /dev/anyprobe, is root's.
    """
    import sys

    from anyprobe.cli.terminal import output
    from anyprobe.core import kept
    from anyprobe.core.errors import UsageError
    from anyprobe.target.kernel.driver import building, loading
    from anyprobe.target.kernel.driver.device import PATH

    running = building.running_release()
    if action in {"load", "unload"} and release not in {None, running}:
        raise UsageError(f"only the running kernel, {running}, can load and unload it")
    if as_json and action != "status":
        raise UsageError("--json is for status")
    release, folder = release or running, f"{kept.directory()}/driver"
    if action == "status":
        status = loading.status(release, building.module_file(release, folder))
        if as_json:
            output.write_json(status, sys.stdout)
            return 0
        said = _described(status)
    elif action == "unload":
        loading.unload()
        said = "the driver is not loaded"
    else:
        said = building.build(release, folder, made_with=headers)
        if action == "load":
            loading.load(said)
            said = f"the driver is loaded: {PATH}"
    output.console(sys.stdout).print(said, soft_wrap=True, markup=False)
    return 0


def _described(found: "Mapping[str, object]") -> str:
    """Return a status as lines for people."""
    from anyprobe.target.kernel.driver.device import PATH

    lines = [f"kernel   {found['release']}", f"built    {found['built'] or 'no: anyprobe driver build'}"]
    lines.append(f"loaded   {'yes' if found['loaded'] else 'no: anyprobe driver load'}")
    if found["loaded"]:
        lines.append(f"device   {found['obstacle'] or PATH}")
    if found["writes"] is not None:
        lines.append(f"writes   {found['writes']} in force")
    return "\n".join(lines)
