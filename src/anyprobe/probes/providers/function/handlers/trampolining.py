"""Functions whose exits cannot all be spliced: their returns seen at a replaced return address, if that is demanded.

A replaced return address is what unwinders, exceptions and code that looks who called it trip over. So what cannot be
shown to be free of these is refused.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.images.modules import VDSO, LoadedObject
from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.objects import ObjectTable
from anyprobe.probes.providers.function.probe import Exitless, Place, Probe, Timed, function_of
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook, TimingGroup
from anyprobe.splice.regions.code_region import SlotBank

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.splice.codegen.handlers.facts import HandlerFacts
    from anyprobe.splice.edits import Module
    from anyprobe.splice.regions.code_region import CodeRegion

HINT = "; --returns trampoline would see it at a replaced return address"
TRAMPOLINE_SERVES = "trampoline: --returns trampoline would see the return at a replaced return address"

_EXIT_UNSPLICED = frozenset({
    Reason.TOO_SHORT, Reason.JUMP_TARGET_IN_JTPR, Reason.CONTROL_FLOW_UNKNOWN, Reason.PAGE_BOUNDARY,
    Reason.BORROWED_BYTES, Reason.OVERLAP, Reason.PUN_OUT_OF_REACH, Reason.NO_ROOM_NEARBY, Reason.NO_DISPLACED_FORM,
    Reason.EXIT_REFUSED, Reason.NOT_A_BOUNDARY, Reason.NOT_CODE, Reason.UNDECODABLE, Reason.STRATEGY_NOT_ASKED,
})  # fmt: skip
"""Refusals of an exit that say nothing against the function's entry."""

_NAMES = """
    setjmp _setjmp __sigsetjmp sigsetjmp savectx getcontext setcontext swapcontext makecontext __start_context
    vfork __vfork clone __clone __clone2 clone3 __clone3 __clone_internal _dl_start _dl_start_user _start
    __tls_get_addr ___tls_get_addr __tls_get_addr_slow dlopen dlmopen dlsym dlvsym __dlopen __dlmopen __dlsym __dlvsym
    ___dlopen ___dlmopen ___dlsym ___dlvsym __libc_dlopen_mode __libc_dlsym dl_iterate_phdr __dl_iterate_phdr
    mcount _mcount __mcount __mcount_internal __fentry__ __cyg_profile_func_enter __cyg_profile_func_exit
    backtrace __backtrace __register_frame __deregister_frame _init _fini start_thread thread_start
"""
_LOOKS_AT_CALLER = frozenset(_NAMES.split())
_LOOKS_AT_CALLER_FORMS = re.compile(r"_dl_runtime_\w+|_dl_tlsdesc_\w+|_Unwind_\w+|__cxa_\w+|unw_\w+|__?sanitizer_\w+")
_WALKERS = ("libgcc_s.", "libunwind", "libdw", "libstdc++.", "libc++")
_EXCEPTIONS, _UNWIND = ".gcc_except_table", ".eh_frame"
_PERSONALITY = b"\x01zP"
"""How a rule of the unwind table begins that names a personality: unwinding stops there, or may."""
_FRAME_TABLES = b"CAMLRUNPARAM"
"""In the OCaml runtime, whose collector finds its frames by their return addresses."""


class Trampolines:
    """What a session does for functions without complete exits; ``wanted`` says whether it was demanded."""

    def __init__(self, objects: ObjectTable, *, wanted: bool) -> None:
        """Look at nothing yet."""
        self._objects, self.wanted = objects, wanted
        self._process_objection: str | None = None
        self._looked = False

    def fall_back(self, probes: Iterable[Probe]) -> list[Place]:
        """Return the places that are to be armed now, put in the stead of what has failed; or refuse with a hint."""
        self._looked = False
        found: list[Place] = []
        for probe in probes:
            found += self._without_exits(probe)
            found += self._unspliced_returns(probe)
            found += self._unspliced_times(probe)
        return found

    def _without_exits(self, probe: Probe) -> Iterator[Place]:
        waiting, probe.exitless = probe.exitless, []
        for each in waiting:
            why = self._objection_for(probe, each)
            if why is None and self.wanted:
                yield self._place(probe, each)
            else:
                probe.refuse(each.site, self._said(each.refusal, why), each.module)

    def _unspliced_returns(self, probe: Probe) -> Iterator[Place]:
        groups: dict[int, list[Place]] = {}
        for place in probe.places:
            if place.exit is not None and not place.hook.armed:
                groups.setdefault(id(place.hook.group), []).append(place)
        for places in groups.values():
            each = self._candidate(places, timed=False)
            if each is not None:
                why = self._objection_for(probe, each)
                if why is None and self.wanted:
                    probe.places = [place for place in probe.places if place not in places]
                    yield self._place(probe, each)
                else:
                    self._refuse(places, why)

    def _unspliced_times(self, probe: Probe) -> Iterator[Place]:
        for timed in list(probe.timed):
            if any(place.hook.armed for place in timed.places):
                continue
            each = self._candidate(timed.places, timed=True)
            if each is not None:
                why = self._objection(each.site, each.module, each.code)
                if why is None and self.wanted:
                    probe.timed.remove(timed)
                    yield self._place(probe, each)
                else:
                    self._refuse(timed.places, why)

    @staticmethod
    def _candidate(places: list[Place], *, timed: bool) -> Exitless | None:
        """Return the function that some places are of, where only its exits stand in the way."""
        refusals = [(place, place.hook.refusal) for place in places if place.hook.refusal is not None]
        for place, refusal in refusals:
            at_entry = place.want.kind is WantKind.ENTRY and refusal.reason is not Reason.EXIT_REFUSED
            if at_entry or refusal.reason not in _EXIT_UNSPLICED:
                return None
        if not refusals:
            return None
        place, why = refusals[0]
        return replace(function_of(place), refusal=why, timed=timed)

    @staticmethod
    def _place(probe: Probe, each: Exitless) -> Place:
        group = TimingGroup() if each.timed else None
        hook = Hook(ActionKind.ENTER_RETURN if each.timed else ActionKind.COUNT_RETURN, group)
        want = Want(each.code.entry, WantKind.ENTRY, tag=hook)
        place = Place(each.site, each.module, each.module.state_of(each.code), want, hook)
        if group is not None:
            probe.timed.append(Timed(each.site, group, [place]))
        else:
            probe.places.append(place)
        return place

    def _refuse(self, places: list[Place], why: str | None) -> None:
        for place in places:
            if place.hook.refusal is not None:
                place.hook.refusal = self._said(place.hook.refusal, why)

    def _said(self, refusal: Refusal, why: str | None) -> Refusal:
        """Return a refusal that says whether a trampoline would help; what was said before stays."""
        if why is not None and self.wanted:
            detail = f"{refusal.detail}; and its return address must stay: {why}"
            return Refusal(Reason.RETURN_ADDRESS, refusal.address, detail)
        if why is None and not refusal.detail.endswith(HINT):
            return replace(refusal, detail=refusal.detail + HINT)
        return refusal

    def handle(self, probe: Probe, facts: "HandlerFacts") -> None:
        """Have the returns of a probe's functions run a handler at replaced return addresses, or refuse them."""
        from anyprobe.probes.providers.function.handlers.actions import call_at

        found = {(each.site.address, each.code.start): each for each in probe.exitless}
        for place in probe.places:
            each = function_of(place)
            found[each.site.address, each.code.start] = each
        probe.exitless, probe.places = [], []
        for each in found.values():
            why = self.would_serve(each.site, each.module, each.code)
            if why is not None:
                detail = f"the return address must stay: {why}"
                probe.refuse(each.site, Refusal(Reason.RETURN_ADDRESS, each.code.entry, detail), each.module)
                continue
            place = self._place(probe, each)
            call_at(place, facts)
            place.hook.kind = ActionKind.HANDLE_RETURN

    @staticmethod
    def silence(homes: "Iterable[CodeRegion]", probes: Iterable[Probe]) -> None:
        """Have no handler of probes that were removed run any more where calls that are under way come back."""
        for hook in (place.hook for probe in probes for place in probe.places):
            if hook.kind is ActionKind.HANDLE_RETURN and isinstance(hook.bank, SlotBank):
                for home in homes:
                    home.silence(hook.bank, hook.offset)

    # -- what must keep its return address

    def would_serve(self, site: "ResolvedSite", module: "Module", code: "FunctionCode") -> str | None:
        """Return why the return address of a function must stay, ``None`` where it may be replaced."""
        self._looked = False
        if code.exits.complete is not None and code.exits.complete.reason is Reason.PART_OF_FUNCTION:
            return "this is no function of its own"
        return self._objection(site, module, code)

    def _objection_for(self, probe: Probe, each: Exitless) -> str | None:
        """Return why a probe's function must keep its return address; a handler would see nothing of the return."""
        if probe.equip is not None:
            return "handlers run at exits only"
        return self._objection(each.site, each.module, each.code)

    def _objection(self, site: "ResolvedSite", module: "Module", code: "FunctionCode") -> str | None:
        from anyprobe.binary.images.noreturn import never_returns
        from anyprobe.binary.unwind.entry_frame import entry_frame_objection

        if not self._looked:
            self._process_objection, self._looked = self._look_at_process(), True
        if self._process_objection is not None:
            return self._process_objection
        loaded = site.object
        if loaded.name == VDSO or self._objects.is_loader(loaded) or loaded.name.startswith(_WALKERS):
            return f"{loaded.name} looks at return addresses"
        for name in site.function.names:
            if name in _LOOKS_AT_CALLER or _LOOKS_AT_CALLER_FORMS.fullmatch(name):
                return f"{name} looks at its return address"
            if never_returns(name):
                return f"{name} never returns"
        if module.slotless:
            return "there is no per-thread memory for it"
        return entry_frame_objection(loaded.image.elf, code.start)

    def _look_at_process(self) -> str | None:
        """Return what of the whole process forbids replaced return addresses."""
        if not self._objects.has_thread_slots():
            return "the program's threads are not all those of glibc"
        if self._objects.has_shadow_stacks():
            return "the program runs on shadow stacks"
        libc = self._objects.libc()
        for loaded in self._objects.objects:
            if loaded.name == VDSO:
                continue
            try:
                objection = _objection_to(loaded, is_libc=loaded is libc and not loaded.is_executable)
            except TargetError as error:
                objection = str(error)
            if objection is not None:
                return objection
        return None


def _objection_to(loaded: LoadedObject, *, is_libc: bool) -> str | None:
    """Return why an object forbids replaced return addresses in the whole process.

    Exceptions pass through functions of any object. The C library's tables are for the cancellation of threads only.
    """
    elf = loaded.image.elf
    if loaded.image.is_go:
        return f"{loaded.name} is Go code"
    if not elf.sections:
        return f"it is not known whether {loaded.name}, which has no section table, throws exceptions"
    if is_libc:
        return None
    unwind = elf.section(_UNWIND)
    personality = unwind is not None and _PERSONALITY in elf.section_bytes(unwind)
    if personality or elf.section(_EXCEPTIONS) is not None:
        return f"exceptions may pass: {loaded.name} has handlers"
    if elf.content.find(_FRAME_TABLES) >= 0:
        return f"the collector of {loaded.name} looks at return addresses"
    return None
