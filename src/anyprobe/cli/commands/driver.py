"""``anyprobe driver``: build, load and unload the module with which the kernel's own text is spliced."""

import click

from anyprobe.cli import helping, options


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

    from anyprobe.cli import output
    from anyprobe.core import kept
    from anyprobe.core.errors import UsageError
    from anyprobe.target.kernel.driver import building, loading

    running = building.running_release()
    if action in {"load", "unload"} and release not in {None, running}:
        raise UsageError(f"only the running kernel, {running}, can load and unload it")
    folder = f"{kept.directory()}/driver"
    said = ""
    if action == "unload":
        loading.unload()
        said = "the driver is not loaded"
    elif action != "status":
        said = built = building.build(release or running, folder, made_with=headers)
        if action == "load":
            loading.load(built)
            said = "the driver is loaded: /dev/anyprobe"
    if action == "status":
        built = building.module_file(release or running, folder)
        status = loading.status(release or running, built)
        if as_json:
            output.write_json(status, sys.stdout)
        else:
            output.console(sys.stdout).print(loading.described(status), soft_wrap=True, markup=False)
        return 0
    if as_json:
        raise UsageError("--json is for status")
    output.console(sys.stdout).print(said, soft_wrap=True, markup=False)
    return 0
