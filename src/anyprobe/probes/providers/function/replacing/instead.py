"""What is called instead of a function: another one of the program, or one of a shared object that is loaded for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import SpecError, UnsupportedTarget, UsageError
from anyprobe.core.refusal import Refusal
from anyprobe.probes.providers.function.replacing.quiet import Code, code_of, code_of_site

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.replacing.shared_object import SharedObject
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.specs.spec import Spec


@dataclass(frozen=True, slots=True)
class Instead:
    """A function that is called instead of another one."""

    name: str
    start: int
    """Where it is entered."""
    code: Sequence[Code]
    handler: Callable[..., Any]
    """What sends calls there."""
    from_file: str = ""
    """The shared object that was loaded for it."""


def of_program(host: "ProbeHost", by: "Spec", spec: "Spec", replaced: "Sequence[ResolvedSite]") -> Instead:
    """Return a function of the program, whose own calls of what it replaces reach that."""
    sites, refused = host.resolve(by)
    if len(sites) != 1 or refused or sites[0].kind != "entry":
        message = f"one function is needed to replace {spec.text}, this names {len(sites) + len(refused)}"
        raise SpecError(by.text, 0, message)
    (site,) = sites
    _refuse_tail_jumps(host, site, replaced)
    start = site.function.start + site.object.bias
    handler = _sending(start, start + site.function.size)
    return Instead(site.canonical.removesuffix(":entry"), start, code_of_site(site), handler)


def check(by: "SharedObject", spec: "Spec", replaced: "Sequence[ResolvedSite]") -> None:
    """See that a function of a shared object may replace what a spec means; nothing is loaded for that."""
    from anyprobe.probes.providers.function.replacing.loading import opened

    if len(replaced) != 1:
        raise UsageError(f"{spec.text} names {len(replaced)} functions, one of a shared object replaces one")
    opened(by)


def of_shared_object(host: "ProbeHost", by: "SharedObject", site: "ResolvedSite") -> Instead:
    """Return a function of a shared object, which is loaded now; what it replaces, it calls by a pointer."""
    from anyprobe.probes.providers.function.replacing.loading import load
    from anyprobe.probes.providers.function.replacing.originals import connect, mark_of

    loaded = load(host, by)
    (function,) = loaded.image.functions.lookup(by.function)
    connect(host, loaded, site)
    start = function.start + loaded.bias
    name = f"{loaded.name}:{function.name}"
    handler = _sending_unmarked(start, mark_of(site.address))
    return Instead(name, start, code_of(loaded, function, name), handler, loaded.path)


def _sending(start: int, end: int) -> Callable[..., Any]:
    def send(ctx):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - a handler
        if not start <= ctx.caller < end:
            ctx.ip = start

    return send


def _sending_unmarked(start: int, mark: int) -> Callable[..., Any]:
    def send(ctx):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - a handler
        if ctx.regs.r11 == mark:
            ctx.regs.r11 = 0
        else:
            ctx.ip = start

    return send


def _refuse_tail_jumps(host: "ProbeHost", site: "ResolvedSite", replaced: "Sequence[ResolvedSite]") -> None:
    """Refuse a function that ends in a jump to what it is to replace: such a call shows its caller, not itself."""
    module = host.module_at(site.function.start + site.object.bias)
    code = module.code.function_at(site.function.start) if module is not None else None
    if code is None or isinstance(code, Refusal):
        return
    starts = {each.function.start + each.object.bias - site.object.bias for each in replaced}
    for leaving in code.exits.found:
        if leaving.target in starts or (leaving.target is not None and leaving.target - 4 in starts):
            raise UnsupportedTarget(f"{site.canonical} ends in a jump to what it is to replace, for ever")
