"""Where a probe is to be: a symbol or an address, looked up in the process, or the kernel's error number."""

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.errors import KprobeError, SpecError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.kprobes.structures import Kprobe
from anyprobe.probes.inlined_sites import instances
from anyprobe.probes.providers.function.load_order import in_load_order
from anyprobe.probes.specs.parts import Part, Spec, in_full, module_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.session import Session


@dataclass(frozen=True, slots=True)
class Location:
    """An instruction of the process."""

    address: int
    module: str
    function: str
    offset: int
    spec: Spec
    """The instruction as a spec."""
    site: "ResolvedSite"
    """The instruction, as it was found for that spec."""
    code: FunctionCode
    link: int
    """The address in the file."""


def locate(session: "Session", kp: Kprobe, *, entry: bool = False) -> Location:
    """Return where a kprobe is to be; ``entry``: it has to be at a function's first instruction."""
    given = kp.addr
    if (kp.symbol_name is None) == (given is None):
        raise KprobeError(errno.EINVAL, "exactly one of symbol_name and addr has to be given")
    if given is not None and not isinstance(given, int):
        raise KprobeError(errno.EINVAL, f"addr is a number, not {given!r}")
    if kp.offset < 0:
        raise KprobeError(errno.EINVAL, f"a negative offset, {kp.offset}")
    site = _by_symbol(session, kp) if given is None else _by_address(session, given + kp.offset)
    if entry and site.address != site.function.start + site.object.bias:
        raise KprobeError(errno.EINVAL, f"{site.address:#x} is not the first instruction of {site.function.name}")
    return _location(session, site)


def _location(session: "Session", site: "ResolvedSite") -> Location:
    code = _checked(session, site)
    offset = site.address - site.function.start - site.object.bias
    link = site.object.link_time(site.address)
    if not code.is_boundary(link):
        near = ", ".join(f"+{at - site.function.start:#x}" for at in code.boundaries_near(link))
        why = Refusal(Reason.NOT_A_BOUNDARY, site.address, f"no instruction starts here; nearest: {near}")
        raise KprobeError(errno.EILSEQ, str(why), why)
    spec = _at(session, site.object, link)
    here = site._replace(spec_text=spec.text, canonical=spec.text, offset=offset, kind="offset")
    return Location(site.address, site.object.name, site.function.name, offset, spec, here, code, link)


def _module_part(session: "Session", loaded: "LoadedObject") -> Part:
    """Return what means the module in a spec: its name, or its path where others have that name, too."""
    name, path = loaded.name, loaded.path
    same = [each for each in session.objects.objects if each.name == name]
    has_path = len(same) > 1 and path.startswith("/") and not any(c in path for c in "*?[: ")
    return module_part(path if has_path else name)


def locations(session: "Session", kp: Kprobe) -> list[Location]:
    """Return all places of a kprobe that is to be at the inlined instances of a function, too."""
    if kp.symbol_name is None or kp.offset:
        raise KprobeError(errno.EINVAL, "inlined instances are found by symbol_name, and have no offset")
    found = []
    try:
        found.append(locate(session, kp))
    except KprobeError as error:
        if error.errno != errno.ENOENT:
            raise
    known = {each.address for each in found}
    places = [address for _, address in instances(session, kp.symbol_name, kp.module) if address not in known]
    found += [_location(session, _by_address(session, address)) for address in places]
    if not found:
        raise KprobeError(errno.ENOENT, f"no function {kp.symbol_name!r}, and no inlined instance that is known of")
    return found


def _at(session: "Session", loaded: "LoadedObject", link: int) -> Spec:
    """Return the spec of an instruction by its address in its file."""
    return in_full(_module_part(session, loaded), Part("-", 0), "offset", offset=link)


def entry_spec(session: "Session", location: Location) -> Spec:
    """Return the function's entry as a spec."""
    site = location.site
    functions = site.object.image.functions
    for name in site.function.names:
        if len(functions.lookup(name)) == 1 and not any(character in name for character in "*?[: "):
            return in_full(_module_part(session, site.object), Part(name, 0), "entry")
    raise KprobeError(errno.EADDRNOTAVAIL, f"{location.function} has no name that means it alone")


def _by_symbol(session: "Session", kp: Kprobe) -> "ResolvedSite":
    assert kp.symbol_name is not None
    text = f"{kp.symbol_name}+{kp.offset:#x}" if kp.offset else kp.symbol_name
    if any(character in kp.symbol_name for character in "*?"):
        raise KprobeError(errno.ENOENT, f"{kp.symbol_name!r} is no symbol but a pattern")
    try:
        sites, refused = session.resolve(f"{kp.module}:{text}" if kp.module else text)
    except SpecError as error:
        raise KprobeError(_number(error), str(error)) from error
    if not sites:
        raise KprobeError(errno.EINVAL, str(refused[0][1]), refused[0][1])
    module = sites[0].object if len(sites) == 1 else _first_loaded(session, [site.object for site in sites])
    first = [site for site in sites if site.object is module]
    if len({site.address for site in first}) > 1:
        raise KprobeError(errno.EADDRNOTAVAIL, f"{kp.symbol_name} means several functions of {first[0].object.name}")
    if first[0].kind not in ("entry", "offset") or first[0].offset != kp.offset:
        raise KprobeError(errno.ENOENT, f"{kp.symbol_name!r} is more than the name of a function")
    return first[0]


def _first_loaded(session: "Session", objects: "Sequence[LoadedObject]") -> "LoadedObject":
    """Return which of some objects was loaded first: what the others have of the same name is mostly not reached."""
    order = in_load_order(session.objects.objects, session.process.mem)
    return next(each for each in order if any(each is one for one in objects))


def _number(error: SpecError) -> int:
    if "ambiguous" in error.message:
        return errno.EADDRNOTAVAIL
    return errno.EINVAL if error.message.startswith("offset") else errno.ENOENT


def _by_address(session: "Session", address: int) -> "ResolvedSite":
    loaded = session.objects.at(address)
    if loaded is None:
        raise KprobeError(errno.EINVAL, f"{address:#x} is in no code of a file; our own code is not probed either")
    try:
        sites, _ = session.resolve(_at(session, loaded, loaded.link_time(address)))
    except SpecError as error:
        raise KprobeError(errno.EINVAL, str(error)) from error
    return next(site for site in sites if site.address == address)


def _checked(session: "Session", site: "ResolvedSite") -> FunctionCode:
    """Return the code around a site; raise what stands against probing it at all."""
    why = session.host.refusal_of(site)
    code = session.module(site.object).code.function_at(site.function.start)
    if isinstance(code, FunctionCode) and why is None:
        return code
    why = why or (code if isinstance(code, Refusal) else None)
    assert why is not None
    raise KprobeError(errno.EINVAL, str(why), why)
