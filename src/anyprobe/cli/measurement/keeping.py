"""Results that are kept in archives: what is known of the run of a command that writes one."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from anyprobe.data.archives.runs import Run, info_of

if TYPE_CHECKING:
    from anyprobe.probes.session import Session


def new_run(*, what: str = "", counted: str = "calls") -> Run:
    """Return a run of the command that runs now, without results yet."""
    context = click.get_current_context()
    given, program = context.find_root().meta.get("anyprobe.arguments", ()), context.obj or ()
    name = context.command.name or ""
    info = info_of(
        name,
        arguments=(*given, *(("--", *program) if program else ())),
        by=context.params.get("by") if name not in {"hist", "metric"} else None,
        tree=bool(context.params.get("tree")),
        what=what,
        counted=counted,
        metric=context.params["what"] if name == "metric" else "",
    )
    return Run(info)


def builds_of(sessions: "Iterable[Session]") -> dict[str, str]:
    """Return the build-ids of the modules in which there are probes."""
    objects = {place.site.object for each in sessions for probe in each.probes for place in probe.all_places}
    return {each.name: each.image.build_id for each in objects if each.image.build_id}
