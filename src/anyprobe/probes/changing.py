"""What handlers that change the program need to know of it, and what they must not do in it."""

from typing import TYPE_CHECKING

from anyprobe.core.errors import SpecError, UnsupportedTarget
from anyprobe.probes.errnoplace import find_errno
from anyprobe.target import procfs

if TYPE_CHECKING:
    from anyprobe.probes.decorators import Decorators


def check_redirection(pid: int) -> None:
    """See that threads can be sent elsewhere: it is done by a return, which shadow stacks do not permit."""
    if "shstk" in procfs.read_status(pid).get("x86_Thread_features", "").split():
        raise UnsupportedTarget("ctx.ip and ctx.skip: the program runs on shadow stacks")


def errno_in(session: "Decorators") -> int:
    """Return where ``errno`` is, from the thread pointer on."""
    places = []
    for spec in ("libc:__errno_location", "a.out:__errno_location"):
        try:
            sites, _ = session.resolve(spec)
        except SpecError:
            continue
        places += [(site.object.image.text().memory, site.function.start, site.object.bias) for site in sites]
    found = find_errno(places, session.engine.process.mem)
    if found is None:
        raise UnsupportedTarget("ctx.errno: the C library's errno is not where it can be found, or not there yet")
    return found
