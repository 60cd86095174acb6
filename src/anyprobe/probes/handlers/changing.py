"""Changing what the program computes: what that needs to know of it, and what must not be done in it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from anyprobe.core.code import NativeCode
from anyprobe.core.errors import SpecError, UnsupportedTarget, UsageError
from anyprobe.core.memory import Memory
from anyprobe.core.refusal import Refusal
from anyprobe.probes.handlers.errno_place import find_errno, find_word
from anyprobe.probes.specs.spec import parsed

if TYPE_CHECKING:
    from anyprobe.probes.host import ProbeHost
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.specs.parts import Spec
    from anyprobe.target.base import ProcessTarget


def replacing(session: "ProbeHost", spec: "Spec", by: "Spec") -> Callable[..., Any]:
    """Return the handler that sends calls to another function; those that come from there reach what it replaces."""
    if not session.unsafe:
        raise UsageError("replace changes what the program computes: unsafe=True, where the session is opened")
    sites, refused = session.resolve(by)
    if len(sites) != 1 or refused or sites[0].kind != "entry":
        message = f"one function is needed to replace {spec.text}, this names {len(sites) + len(refused)}"
        raise SpecError(by.text, 0, message)
    (site,) = sites
    replaced, _ = session.resolve(spec)
    _refuse_tail_jumps(session, site, replaced)
    start = site.function.start + site.object.bias
    return _sending(start, start + site.function.size)


def _sending(start: int, end: int) -> Callable[..., Any]:
    def send(ctx):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - a handler
        if not start <= ctx.caller < end:
            ctx.ip = start

    return send


def _refuse_tail_jumps(session: "ProbeHost", site: "ResolvedSite", replaced: "Sequence[ResolvedSite]") -> None:
    """Refuse a function that ends in a jump to what it is to replace: such a call shows its caller, not itself."""
    module = session.module_at(site.function.start + site.object.bias)
    code = module.code.function_at(site.function.start) if module is not None else None
    if code is None or isinstance(code, Refusal):
        return
    starts = {each.function.start + each.object.bias - site.object.bias for each in replaced}
    for leaving in code.exits.found:
        if leaving.target in starts or (leaving.target is not None and leaving.target - 4 in starts):
            raise UnsupportedTarget(f"{site.canonical} ends in a jump to what it is to replace, for ever")


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
