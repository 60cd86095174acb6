"""Changing what the program computes: what that needs to know of it, and what must not be done in it."""

from typing import TYPE_CHECKING

from anyprobe.core.code import NativeCode
from anyprobe.core.errors import SpecError, UnsupportedTarget
from anyprobe.core.memory import Memory
from anyprobe.probes.providers.function.handlers.errno_place import find_errno, find_word
from anyprobe.probes.specs.spec import parsed

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.target.base import ProcessTarget


def check_redirection(process: "ProcessTarget") -> None:
    """See that threads can be sent elsewhere: it is done by a return, which shadow stacks do not permit."""
    if process.has_shadow_stacks():
        raise UnsupportedTarget("ctx.ip and ctx.skip: the program runs on shadow stacks")


def keep_clear(session: "ProbeHost", code: NativeCode) -> None:
    """See that no splice overwrites, now or later, what begins where a handler sends threads to."""
    for each in code.destinations:
        module = None if each.relative else session.module_at(each.value)
        if module is not None and not module.keep_clear(each.value - module.bias):
            raise UnsupportedTarget(f"ctx.ip: the instruction at {each.value:#x} has made room for another probe")


def errno_in(session: "ProbeHost") -> int | None:
    """Return where ``errno`` is, from the thread pointer on, ``None`` if the C library is not there, or linked, yet."""
    if session.symbols.objects.libc() is None:
        return None
    places = _errno_places(session)
    found = find_errno(places, session.process.mem)
    if found is None and find_word(places) is None:
        raise UnsupportedTarget("ctx.errno: the C library's errno is not where it can be found")
    return found


def errno_word_in(session: "ProbeHost") -> int:
    """Return where the loader will say where ``errno`` is; the libraries are mapped by now, and not linked."""
    found = find_word(_errno_places(session))
    if found is None:
        raise UnsupportedTarget("ctx.errno: the C library's errno is not where it can be found")
    return found


def _errno_places(session: "ProbeHost") -> list[tuple[Memory, int, int]]:
    places: list[tuple[Memory, int, int]] = []
    for spec in parsed(("libc:__errno_location", "a.out:__errno_location")):
        try:
            sites, _ = session.resolve(spec)
        except SpecError:
            continue
        places += [(site.object.image.text().memory, site.function.start, site.object.bias) for site in sites]
    return places
