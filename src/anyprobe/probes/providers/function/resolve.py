"""Specs to sites: which functions of which loaded objects a spec means, and what is nearest when it means none."""

import fnmatch
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.binary.images.modules import LoadedObject, module_names
from anyprobe.binary.objects.debug_files import MINI
from anyprobe.binary.objects.functions import Function
from anyprobe.core.errors import SpecError, TargetError, UnsupportedTarget
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.named import INSTANCES, Named, has_glob, is_glob, named_in
from anyprobe.probes.specs.naming import as_spec
from anyprobe.probes.specs.spec import Spec

if TYPE_CHECKING:
    from anyprobe.binary.objects.markers import Marker

_MOST_DEMANGLED = 20_000
"""Names that are demangled to find the nearest ones, in a quarter of a second or so."""
_MOST_NEAREST = 5
_IN_LIBC = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libanl.so.1")
"""Libraries of glibc that are a part of libc.so.6 since version 2.34."""
_IN_MERGED_LIBC = "pthread_create"
"""A function that libc.so.6 has since then, and not before."""
IfuncTargets = Callable[[LoadedObject, Function], Sequence[int]]
"""Returns the runtime addresses that an IFUNC symbol leads to in the process."""


class ResolvedSite(NamedTuple):
    """One place that a spec means: a function's entry, its returns, an instruction, or many of them."""

    spec_text: str
    canonical: str
    object: LoadedObject
    function: Function
    offset: int
    address: int
    """Runtime address of the site; for a probe of returns or of many instructions, of the function."""
    kind: str
    """``entry``, ``return``, ``offset``, ``insn``, ``block``, ``call`` or ``usdt``."""
    note: str = ""
    """What the user should know: that an IFUNC was resolved, and to what."""
    shown: str = ""
    """The function's name in results: the one that was asked for, else the best one as a programmer wrote it."""
    label: str = ""
    """What tables call it instead, where a name was asked for that leads to another function, or a marker."""
    marker: "Marker | None" = None
    """The USDT marker that was asked for."""
    pattern: str = ""
    """A glob over the offsets of the instructions that are meant, if there may be many."""

    @property
    def name(self) -> str:
        """The function's name in results."""
        return self.shown or self.function.demangled


@dataclass(frozen=True)
class Unresolved:
    """A function that a spec means and that cannot be a site, with the refusal."""

    canonical: str
    refusal: Refusal


@dataclass(frozen=True)
class Resolution:
    """What a spec means in a process."""

    sites: tuple[ResolvedSite, ...]
    refused: tuple[Unresolved, ...] = ()


def resolve(
    spec: Spec, objects: Sequence[LoadedObject], *, ifunc_targets: IfuncTargets | None = None
) -> list[ResolvedSite]:
    """Return the sites of a spec; raise ``SpecError`` if it means none."""
    return list(resolve_all(spec, objects, ifunc_targets=ifunc_targets).sites)


def resolve_all(
    spec: Spec, objects: Sequence[LoadedObject], *, ifunc_targets: IfuncTargets | None = None, pid: int = 0,
    within: Collection[LoadedObject] | None = None,
) -> Resolution:  # fmt: skip
    """Return the sites of a spec in process ``pid`` (0: any), and the functions that are refused already here.

    ``within``: only functions of these objects are looked for; it is no mistake if there are none.
    """
    if pid and spec.pid not in (None, pid):
        at = spec.text.index("pid")
        length = len(f"pid{spec.pid}")
        raise SpecError(spec.text, at, f"this names process {spec.pid}, and not {pid}, which is probed", length=length)
    meant = meant_modules(spec, objects)
    if within is not None:
        meant = [each for each in meant if each in within]
        if not meant:
            return Resolution(())
    chosen = readable_modules(spec, meant)
    if spec.line is not None:
        from anyprobe.probes.providers.function.source_lines import places_of_line

        places = places_of_line(spec, chosen)
        return Resolution(tuple(site for each, address in places for site in _inside(spec, each, address)))
    if spec.is_absolute:
        return _absolute(spec, chosen)
    if spec.name == "any":
        return _any_name(spec, lambda each: resolve_all(each, objects, ifunc_targets=ifunc_targets, within=within))
    found = _named(spec, chosen)
    if not found and spec.offset is not None:  # "bare+0x1139" is what a function without a name is called
        called = replace(spec.function, text=f"{spec.function.text}+{spec.offset:#x}")
        whole = spec._replace(function=called, name="entry", offset=None)
        if found := _named(whole, chosen):
            spec = whole
    if not found:
        raise _no_function(spec, chosen)
    _refuse_ambiguity(spec, found)
    return _sites(spec, found, objects, ifunc_targets)


def _any_name(spec: Spec, resolve_one: "Callable[[Spec], Resolution]") -> Resolution:
    """Resolve a glob of names: entries, returns and instructions, by their offsets in hexadecimal."""
    kinds = [each for each in ("entry", "return") if fnmatch.fnmatchcase(each, spec.pattern)]
    parts = [resolve_one(spec._replace(name=kind, pattern="")) for kind in kinds]
    offsets = spec.pattern.removeprefix("0x")
    may_match = re.fullmatch(r"[0-9a-f*?\[\]!-]+", offsets)
    every = resolve_one(spec._replace(name="insn", pattern=offsets)) if may_match else Resolution(())
    several = (each._replace(pattern=offsets) for each in every.sites)
    found = {(each.canonical, each.refusal): each for part in (*parts, every) for each in part.refused}
    return Resolution((*(site for part in parts for site in part.sites), *several), tuple(found.values()))


def _named(spec: Spec, objects: Sequence[LoadedObject]) -> list[tuple[LoadedObject, Named]]:
    """Return the functions that the function part means, with the objects that have them."""
    return [(each, named) for each in objects for named in named_in(spec, each)]


def meant_modules(spec: Spec, objects: Sequence[LoadedObject]) -> list[LoadedObject]:
    """Return the objects that the module part means; a path means its file, whatever links lead to it.

    So does a command's name: Debian's redis-server is a link to redis-check-rdb, which only the executable is called.
    """
    wanted = spec.module.text
    chosen = [each for each in objects if each.matches(wanted, literal=spec.module.quoted)]
    if not chosen and "/" in wanted:
        real = os.path.realpath(wanted)
        chosen = [each for each in objects if each.path in (wanted, real)]
    elif not chosen and not spec.module.quoted and (command := _command(wanted)):
        chosen = [each for each in objects if each.is_executable and each.path == command]
    if not spec.module.quoted and any(wanted in module_names(name) for name in _IN_LIBC):
        chosen += _merged(spec, objects, chosen)
    if chosen:
        return chosen
    if wanted.strip("[]") == Reason.VSYSCALL.value:
        raise UnsupportedTarget(
            "vsyscall: the kernel answers the calls of this page itself and it cannot be changed; "
            "probe vdso, or the functions of the C library that call it"
        )
    if wanted == "a.out" and not any(each.was_given_program for each in objects):
        raise UnsupportedTarget(
            "the executable's code is not mapped from its file: it was moved to huge pages or to other memory; "
            "only private mappings of files can be probed"
        )
    names = [name for each in objects for name in module_names(each.name)]
    names += ["a.out"] if any(each.is_executable for each in objects) else []
    stem = module_names(wanted)[-1].removeprefix("lib").lower()
    parts = [module_names(each.name)[-1] for each in objects if len(stem) > 2 and stem in each.name.lower()]
    from anyprobe.probes.specs.nearest import nearest_names

    nearest = tuple(dict.fromkeys((*parts, *nearest_names(wanted, names))))[:_MOST_NEAREST]
    raise spec.error(spec.module, f"no module {wanted!r} is loaded", nearest)


def _merged(spec: Spec, objects: Sequence[LoadedObject], chosen: Sequence[LoadedObject]) -> list[LoadedObject]:
    """Return the C library that has the functions of a library which glibc 2.34 has merged into it, if it has.

    The library of the old name may be loaded still, without functions.
    """
    merged = [each for each in objects if each not in chosen and each.matches("libc.so.6")]
    merged = [each for each in merged if each.image.functions.lookup(_IN_MERGED_LIBC)]
    if merged and not spec.function.text.strip("*"):
        if chosen:
            return []
        wanted = spec.module.text
        message = f"{wanted} is a part of {merged[0].name} since glibc 2.34; name its functions"
        raise spec.error(spec.function, message, (f"{wanted}:{_IN_MERGED_LIBC}", "libc:*"))
    return merged


def _command(name: str) -> str | None:
    """Return the file that is run by a name."""
    import shutil

    found = shutil.which(name)
    return os.path.realpath(found) if found else None


def readable_modules(spec: Spec, chosen: Sequence[LoadedObject]) -> list[LoadedObject]:
    """Return the objects whose files can be read; an unreadable one is an error if it was named, or if all are.

    A process may map code that is no object (a compiler's memory file), which a search of all modules passes by.
    """
    readable: list[LoadedObject] = []
    error: TargetError | None = None
    for each in chosen:
        try:
            _ = each.image.functions, each.bias
            readable.append(each)
        except TargetError as failure:
            error = error or failure
    named = bool(spec.module) and not has_glob(spec.module.text)
    if error is not None and (named or not readable):
        raise error
    return readable


_told: dict[tuple[object, ...], SpecError] = {}
"""What was said of specs that mean nothing in some files: of a tree of processes it is asked for each program."""
_MOST_TOLD = 256


def _no_function(spec: Spec, objects: Sequence[LoadedObject]) -> SpecError:
    """Return the error for a function that no chosen module has."""
    key = spec, *((each.name, each.path, each.image.build_id, each.image.elf.identity) for each in objects)
    found = _told.get(key)
    if found is None:
        if len(_told) >= _MOST_TOLD:
            _told.clear()
        found = _told[key] = _says_what_is_nearest(spec, objects)
    return SpecError(found.spec, found.position, found.message, found.nearest, length=found.length)


def _says_what_is_nearest(spec: Spec, objects: Sequence[LoadedObject]) -> SpecError:
    from anyprobe.binary.objects.demangle import is_mangled, spellings

    wanted = spec.function.text
    names: list[str] = []
    for each in objects:
        names += each.image.functions.names()
        if len(names) > 100_000:
            break
    if not is_mangled(wanted):  # what is shown is written as a programmer writes it
        mangled = [name for name in names if is_mangled(name)][:_MOST_DEMANGLED]
        names = [name for name in names if not is_mangled(name)] + [spellings(name).plain for name in mangled]
    where = objects[0].name if len(objects) == 1 else "any of the loaded modules"
    why = _imported_from(wanted, objects) or _inlined(wanted, objects) or _without_names(objects)
    hint = f" ({why})" if why else ""
    from anyprobe.probes.specs.nearest import nearest_names

    nearest = nearest_names(wanted.partition("@")[0], names)
    if any(name.startswith(f"{wanted}[") for name in names):
        nearest = (wanted + INSTANCES, *nearest[:-1])
    return spec.error(spec.function, f"no function {wanted!r} in {where}{hint}", nearest)


def _imported_from(wanted: str, objects: Sequence[LoadedObject]) -> str:
    """Return a hint if a module only imports the function that it was asked for."""
    for each in objects:
        table = each.image.dynamic_table
        offsets = table.offsets_of(wanted) if table is not None else []
        if table is not None and any((table.symbols["name"] == at).any() for at in offsets):
            return f"{each.name} imports it from another module; leave the module out to find it"
    return ""


def _inlined(wanted: str, objects: Sequence[LoadedObject]) -> str:
    """Return a hint if debug information says that the compiler has put the function into others."""
    from anyprobe.binary.dwarf.inlined import inlined_instances

    if len(objects) != 1 or not wanted.isidentifier():
        return ""
    try:
        count = len(inlined_instances(objects[0].image.debug_info, wanted))
    except TargetError:  # there is no debug information
        return ""
    where = "1 place" if count == 1 else f"{count} places"
    return f"it has been inlined at {where}: anyprobe list --inlined names them" if count else ""


def _without_names(objects: Sequence[LoadedObject]) -> str:
    """Return a hint if the only module that was searched has the names of exported functions alone."""
    if len(objects) != 1:
        return ""
    image = objects[0].image
    if any(table is not image.dynamic_table for table in image.symbol_tables):
        return ""
    if image.elf.section(MINI) is not None:
        return f"its symbols are in {MINI}, which is damaged, so that only exported functions have names"
    return "it is stripped, so that only exported functions have names; its debug symbols have the others"


def _refuse_ambiguity(spec: Spec, found: Sequence[tuple[LoadedObject, Named]]) -> None:
    """Refuse a name that several functions of one module have: which one is meant, only the user knows.

    Overloads are not ambiguous: the same name to the reader, but not to the linker; an offset into them is.
    """
    if is_glob(spec):
        return
    for each in {id(loaded): loaded for loaded, _ in found}.values():
        mine = [named.function for loaded, named in found if loaded is each]
        if spec.offset is None:
            mine = [function for function in mine if spec.function.text in function.names]
        if len(mine) > 1:
            choices = tuple(f"pid:{each.name}:-:{function.start + (spec.offset or 0):#x}" for function in mine)
            raise spec.error(
                spec.function,
                f"{len(mine)} functions of {each.name} are named {spec.function.text!r}; "
                "the name is ambiguous; say which one by its offset in the module",
                choices,
            )


def _absolute(spec: Spec, objects: Sequence[LoadedObject]) -> Resolution:
    """Resolve an offset in the module, which is a link-time address; without a module it is the address itself."""
    if spec.offset is None:
        raise spec.error(spec.function, "an offset is missing")
    if not spec.module:
        here = next((each for each in objects if spec.offset in each), None)
        if here is None:
            raise spec.name_error(f"no file's code is at {spec.offset:#x}; after a module it is an offset")
        return Resolution(tuple(_inside(spec, here, here.link_time(spec.offset))))
    sites = [site for each in objects for site in _inside(spec, each, spec.offset)]
    if not sites:
        ranges = ", ".join(str(area) for each in objects for area in each.image.code_ranges[:4])
        raise spec.name_error(f"{spec.offset:#x} is not in the code of {objects[0].name} (its code: {ranges})")
    return Resolution(tuple(sites))


def _inside(spec: Spec, loaded: LoadedObject, place: int) -> Iterator[ResolvedSite]:
    """Yield the site at a link-time address, if there is code of the object."""
    address = loaded.runtime(place)
    if address not in loaded:
        return
    function = loaded.image.functions.containing(place)
    function = function or next((stub for stub in loaded.image.stubs if stub.start <= place < stub.end), None)
    if function is None:
        function = Function(place, place, (f"{loaded.name}+{place:#x}",))
    canonical = f"pid:{loaded.name}:-:{place:#x}"
    note = f"{spec.function.text}:{spec.line}" if spec.line is not None else ""
    yield ResolvedSite(spec.text, canonical, loaded, function, place - function.start, address, "offset", note)


def _sites(
    spec: Spec,
    found: Sequence[tuple[LoadedObject, Named]],
    objects: Sequence[LoadedObject],
    ifunc_targets: IfuncTargets | None,
) -> Resolution:
    """Make a site of each function; an IFUNC symbol gives those of the functions that it was resolved to."""
    offset, text, kind = spec.offset, spec.text, spec.name
    plain = [] if offset is None else [each.function for _, each in found if not each.chooses]
    beyond = [each for each in plain if offset is not None and offset >= max(each.size, 1)]
    sites: dict[tuple[int, str], ResolvedSite] = {}
    refused: list[Unresolved] = []
    for loaded, (function, shown, canonical, chooses) in found:
        if not chooses and (offset is None or offset < max(function.size, 1)):
            address = loaded.bias + function.start + (offset or 0)
            site = ResolvedSite(text, canonical, loaded, function, offset or 0, address, kind, "", shown)
            sites.setdefault((address, kind), site)
    # IFUNCs last: what they lead to keeps its own name if the spec means that too.
    for loaded, named in found:
        if named.chooses:
            addresses = ifunc_targets(loaded, named.function) if ifunc_targets is not None else ()
            for made in _through_ifunc(spec, loaded, named, _places(addresses, objects)):
                if isinstance(made, Unresolved):
                    refused.append(made)
                else:
                    sites.setdefault((made.address, made.kind), made)
    if beyond and not sites and not refused:
        longest = max(beyond, key=lambda each: each.size)
        raise spec.name_error(
            f"offset {spec.offset:#x} lies beyond {'every match' if is_glob(spec) else longest.demangled}, "
            f"which has {longest.size:#x} bytes"
        )
    return Resolution(tuple(sites.values()), tuple(refused))


def _through_ifunc(
    spec: Spec, loaded: LoadedObject, named: Named, targets: Sequence[tuple[LoadedObject, Function]]
) -> list[ResolvedSite | Unresolved]:
    """Return the sites of the implementations that the process uses for an IFUNC symbol."""
    function, shown, canonical, _ = named
    made: list[ResolvedSite | Unresolved] = []
    for place, target in targets:
        if spec.offset is not None and spec.offset >= target.size:
            continue
        note = f"{shown} is an IFUNC, resolved to {target.name} here"
        label = f"{as_spec(shown)} → {_implementation(shown, target)}"
        offset = spec.offset or 0
        address = place.runtime(target.start + offset)
        made.append(ResolvedSite(spec.text, canonical, place, target, offset, address, spec.name, note, label=label))
    if not made:
        detail = f"{shown} is chosen at load time (IFUNC), and no module of the process has resolved it"
        made.append(Unresolved(canonical, Refusal(Reason.IFUNC_UNRESOLVED, loaded.runtime(function.start), detail)))
    return made


def _implementation(asked: str, target: Function) -> str:
    """Return the short name of what was chosen for a function: ``avx_unaligned`` of ``__memcpy_avx_unaligned``."""
    stem = asked.partition("@")[0].strip("_") + "_"
    short = (name.lstrip("_").removeprefix(stem) for name in target.names if name.lstrip("_").startswith(stem))
    return next((each for each in short if each), target.name)


def _places(addresses: Sequence[int], objects: Sequence[LoadedObject]) -> list[tuple[LoadedObject, Function]]:
    """Return which functions start at some runtime addresses."""
    found: list[tuple[LoadedObject, Function]] = []
    for address in addresses:
        place = next((each for each in objects if address in each), None)
        target = place.image.functions.at(place.link_time(address)) if place is not None else None
        if place is not None and target is not None:
            found.append((place, target))
    return found
