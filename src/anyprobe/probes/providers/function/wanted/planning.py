"""``explain`` and ``list``: plans without a change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.liveness.vectors import VectorLiveness, names_of
from anyprobe.core.errors import SiteRefused
from anyprobe.core.quoting import shown_module
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.findings.explanation import Explanation, Line, ListedSite
from anyprobe.isa import disassemble
from anyprobe.probes.providers.function.clobbering import clobbers
from anyprobe.probes.providers.function.handlers.trampolining import TRAMPOLINE_SERVES
from anyprobe.probes.providers.function.placing import off_boundary
from anyprobe.probes.providers.function.probe import NEVER_RETURNS, exit_want, instructions_of
from anyprobe.probes.specs.dtrace import EACH
from anyprobe.splice.apply.live.changes import explained
from anyprobe.splice.codegen.emit import ActionSource, emit_patch
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode
from anyprobe.splice.codegen.routines import Routines
from anyprobe.splice.edits import Module, planned_of
from anyprobe.splice.plan.splices import FunctionPlan, PlannedSplice, Want, WantKind

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.specs.parts import Spec

_BEFORE, _BEHIND = 4, 8
CALLS_GO_ON = "calls that leave by a jump are timed to where their caller goes on, which is spliced there"
CALLS_END = "calls that leave by a jump are not timed: --returns auto would splice their callers"
CALLS_END_IN_CALLERS = "--returns callers: calls end where their caller goes on, which is spliced there"
RETURNS_GO_ON = "handlers see calls that leave by a jump where their caller goes on, which is spliced there"
_REGISTERS = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
"""The registers that patches may take, as manuals list them."""
_MADE_UP_PATCH, _MADE_UP_ROUTINE, _MADE_UP_GATE, _MADE_UP_SLOT = 0x10000, 0x8000, 0x7000, 0x200
"""Distances below the module, and a slot, where nothing has been placed yet."""


def _planned(session: "ProbeHost", module: Module, code: FunctionCode, wants: list[Want]) -> FunctionPlan:
    """Plan and take nothing."""
    splicing, state = session.splicing, module.known_state(code)
    with module.claims.trial(planned_of(state.splices if state else ())) as claims:
        found = None if splicing.live is None else splicing.live.plan_for(module, claims, code, wants)
        plan = found if isinstance(found, FunctionPlan) else splicing.planning.planner(module, claims).plan(code, wants)
    return plan if found is None else replace(plan, notes=(explained(found),))


def _planned_at(
    session: "ProbeHost", module: Module, code: FunctionCode, site: "ResolvedSite", *, timed: bool = False
) -> tuple[list[Want], FunctionPlan]:
    """Return what is wanted for a site, and its plan; a marker may be better placed after its nop."""
    in_callers = timed and session.options.returns == "callers" and not site.object.image.is_go
    wants = [Want(code.entry, WantKind.ENTRY)] if in_callers else _wants(site, code, timed=timed)
    plan = _planned(session, module, code, wants)
    if site.marker is None or not any(why.reason is Reason.MAY_FAULT for _, why in plan.refused):
        return wants, plan
    from anyprobe.probes.providers.usdt.after_nop import after_nop

    after = after_nop(code, wants[0].address)
    if after is None:
        return wants, plan
    others = [Want(after, WantKind.OFFSET)]
    moved = _planned(session, module, code, others)
    return (wants, plan) if moved.refused else (others, moved)


def _wants(site: "ResolvedSite", code: FunctionCode, *, timed: bool = False) -> list[Want]:
    if timed:
        return [Want(code.entry, WantKind.ENTRY), *map(exit_want, code.exits.found)]
    if site.kind == "return":
        return [exit_want(each) for each in code.exits.found]
    if site.kind == "entry":
        return [Want(code.entry, WantKind.ENTRY)]
    if site.kind in EACH:
        return [Want(address, WantKind.OFFSET) for address in instructions_of(code, site.kind, site.pattern)]
    return [Want(site.function.start + site.offset, WantKind.OFFSET)]


def explain(session: "ProbeHost", spec: "Spec", *, timed: bool = False) -> Explanation:
    """Return the plan for the first site that a spec means; of all that timing its function needs, if ``timed``."""
    sites, refused = session.resolve(spec)
    if not sites:
        raise SiteRefused(refused[0][1])
    site = sites[0]
    module = session.module(site.object)
    code = _code_of(session, site, module)
    if isinstance(code, Refusal):
        raise SiteRefused(code)
    session.splicing.planning.use_space(session.mappings())
    session.splicing.planning.allow_near_heap(module)
    wants, plan = _planned_at(session, module, code, site, timed=timed)
    in_callers = timed and session.options.returns == "callers" and not site.object.image.is_go
    ends, replaced = (timed or site.kind == "return") and not in_callers, False
    first = wants[0].address if wants else code.entry
    splice = next((s for want, s in _served(plan).items() if want.address == first), None)
    part = code if code.start <= first < code.end else module.code.containing(first) or code
    free = clobbers(module.code, code, wants[0]) if wants else None
    more = "1 more function matches" if len(sites) == 2 else f"{len(sites) - 1} more functions match"
    notes = [f"{more}: `anyprobe list` shows the sites of all"] if len(sites) > 1 else []
    notes += [*([site.note] if site.note else []), *plan.notes]
    if ends and (code.exits.complete is not None or plan.refused):
        stays = session.trampolines.would_serve(site, module, code)
        notes.append(TRAMPOLINE_SERVES if stays is None else f"trampoline: the return address must stay: {stays}")
        replaced = stays is None and session.trampolines.wanted
    why = _ends_refused(session, code, plan, timed=timed, replaced=replaced) if ends else None
    if timed and why is None and not in_callers:
        why = _not_followed(session, site, module, code, wants)
    if in_callers:
        why = _said(refusal) if (refusal := session.clock_refusal()) is not None else None
        notes.append(CALLS_END_IN_CALLERS)
    elif ends and why is None and any(each.kind == "tail" for each in code.exits.found):
        follows = session.splicing.memory.follows_jumps
        if timed:
            notes.append(CALLS_GO_ON if follows else CALLS_END)
        elif follows:
            notes.append(RETURNS_GO_ON)
    if timed and why is None:
        notes.append("the patch is shown as it would count; to time, it reads the clock, too")
    return Explanation(
        spec=site.canonical,
        module=site.object.name,
        function=site.function.demangled,
        address=first + module.bias,
        function_start=site.function.start + module.bias,
        disassembly=tuple(_lines(part, first, splice, module.bias, _naming(session, site))),
        live_registers=tuple(name for name in _REGISTERS if free is None or name not in free.registers),
        dead_registers=tuple(name for name in _REGISTERS if free is not None and name in free.registers),
        dead_vectors=names_of(VectorLiveness(module.code, part).dead_at(first)),
        flags_live=free is None or not free.flags,
        verdicts=tuple(_verdicts(plan, first)),
        patch=tuple(_patch(session, module, code, splice, _naming(session, site))) if splice and why is None else (),
        notes=tuple(notes),
        refused=why or (None if splice else _refused(plan, first)),
        sites=tuple(sorted((address, _said(verdict)) for address, verdict in _outcomes(plan, module.bias))),
        timed=timed,
        stack=_stack_need(session, site, timed=timed, replaced=replaced) if splice and why is None else 0,
        by_goroutine=site.object.image.is_go,
        in_callers=in_callers,
    )


def _stack_need(session: "ProbeHost", site: "ResolvedSite", *, timed: bool, replaced: bool) -> int:
    """Return how much of the program's stack a hit takes."""
    from anyprobe.splice.codegen.stack_needs import need

    if site.object.image.is_go:
        return 0
    calls_clock, on_processors = bool(session.splicing.memory.clock), session.options.on_processors
    return need(timed=timed, replaced=replaced, calls_clock=calls_clock, on_processors=on_processors)


def _ends_refused(
    session: "ProbeHost", code: FunctionCode, plan: FunctionPlan, *, timed: bool, replaced: bool
) -> str | None:
    """Return why a function cannot be seen at its ends, whatever the single sites permit.

    ``replaced``: the return address may be replaced instead, and that is demanded.
    """
    refusal = session.clock_refusal() if timed else None
    if refusal is None and not replaced:
        refusal = code.exits.complete
    if refusal is not None:
        return _said(refusal)
    if not code.exits.found and code.exits.complete is None:
        return f"{Reason.NO_EXIT.value}: {NEVER_RETURNS}"
    return next((_said(why) for want, why in plan.refused), None) if timed and not replaced else None


def _not_followed(
    session: "ProbeHost", site: "ResolvedSite", module: Module, code: FunctionCode, wants: list[Want]
) -> str | None:
    """Return why a Go function cannot be timed."""
    if not module.code.text.is_go:
        return None
    from anyprobe.probes.providers.function.timing.go_calls import go_refusal
    from anyprobe.splice.plan.go_calls import why_not_followed

    clock, on_processors = session.splicing.memory.clock, session.options.on_processors
    refusal = go_refusal(site.address, clock=clock, on_processors=on_processors)
    detail = why_not_followed(module.code.text, code, wants) if refusal is None else refusal.detail
    return None if detail is None else f"{Reason.GO_TIMING.value}: {detail}"


def _code_of(session: "ProbeHost", site: "ResolvedSite", module: Module) -> FunctionCode | Refusal:
    """Return the code in which a site can be planned, or why it cannot be."""
    code = session.refusal_of(site) or module.code.function_at(site.function.start)
    return code if isinstance(code, Refusal) else off_boundary(site, code, module) or code


def _outcomes(plan: FunctionPlan, bias: int) -> Iterator[tuple[int, str | Refusal]]:
    """Yield the address of each wanted site with the strategy that serves it, or why none does."""
    for want, splice in _served(plan).items():
        yield want.address + bias, splice.strategy.value
    for want, why in plan.refused:
        yield want.address + bias, why


def _said(verdict: str | Refusal) -> str:
    return verdict if isinstance(verdict, str) else f"{verdict.reason.value}: {verdict.detail}"


def _lines(
    code: FunctionCode, address: int, splice: PlannedSplice | None, bias: int, name: Callable[[int], str]
) -> list[Line]:
    index = code.index_of(address) or 0
    moved = {insn.address for insn in splice.insns} if splice else set()
    written = range(splice.head + 1, splice.write_at + splice.written) if splice else range(0)
    lines = []
    for number in range(max(index - _BEFORE, 0), min(index + _BEHIND, len(code.iced))):
        insn = code.insn(number)
        marks = [
            name
            for name, holds in (
                ("IA", insn.address == address),
                ("DCR", insn.address in moved),
                ("JTPR", insn.address in written),
            )
            if holds
        ]
        lines.append(
            Line(
                insn.address + bias,
                insn.raw,
                disassemble.with_name(insn.at(insn.address + bias).text, name),
                tuple(marks),
            )
        )
    return lines


def _naming(session: "ProbeHost", site: "ResolvedSite") -> Callable[[int], str]:
    """Return what names addresses of code; those in the site's module go without its name."""
    return lambda address: session.symbols.name(address).removeprefix(f"{shown_module(site.object.name)}:")


def _refused(plan: FunctionPlan, address: int) -> str | None:
    """Return why no plan has the site: what forbids it is found before strategies are tried, so that none says so."""
    return next((_said(why) for want, why in plan.refused if want.address == address), None)


def _verdicts(plan: FunctionPlan, address: int) -> list[tuple[str, str]]:
    seen: dict[str, str] = {}
    for site, strategy, refusal in plan.verdicts:
        if site == address and seen.get(strategy.value) != "chosen":
            verdict = _said(refusal or "chosen")
            if refusal is None or strategy.value not in seen:
                seen[strategy.value] = verdict
    if "trap" not in seen:
        seen["trap"] = "not used: a trap can kill a program that blocks SIGTRAP"
    return list(seen.items())


def _patch(
    session: "ProbeHost", module: Module, code: FunctionCode, splice: PlannedSplice, name: Callable[[int], str]
) -> list[tuple[int, bytes, str]]:
    """Return the generated code as it would be below the module, with a counter at each wanted instruction."""
    base = module.low - _MADE_UP_PATCH
    routine = module.low - _MADE_UP_ROUTINE
    slotless = not session.splicing.planning.has_slots(module)
    near = module.low - _MADE_UP_GATE
    bank = BankCode(None if slotless else _MADE_UP_SLOT, near, near, Routines(routine, routine, routine, routine))
    source = ActionSource(
        lambda _: (Action(ActionKind.COUNT, 0x40, bank),), lambda want: clobbers(module.code, code, want)
    )
    patch = emit_patch(splice, base, module.bias, source, {})
    if isinstance(patch, Refusal):
        return []
    within = range(base, base + len(patch.code))
    return [
        (address, code, text if _leads_into(text, within) else disassemble.with_name(text, name))
        for address, code, text in disassemble.format(patch.code, base)
    ]


def _leads_into(text: str, within: range) -> bool:
    target = disassemble.target_in(text)
    return target is not None and target in within


def listed(session: "ProbeHost", specs: "Sequence[Spec]") -> list[ListedSite]:
    """Return the sites that specs mean, each with the strategy that would be used or the reason against it."""
    from anyprobe.probes.providers.function.prototypes import Prototypes

    session.splicing.planning.use_space(session.mappings())
    prototypes = Prototypes(lambda spec: session.resolve(spec)[0])
    found = []
    for spec in specs:
        sites, refused = session.resolve(spec)
        found += [ListedSite(canonical, "", canonical, 0, why.address, None, why) for canonical, why in refused]
        for site in sites:
            listed_here = _list_site(session, site)
            if site.marker is not None:
                from anyprobe.probes.providers.usdt.arguments import listed_marker

                found += [replace(each, marker=listed_marker(site, site.marker)) for each in listed_here]
            else:
                found += [replace(each, **prototypes.shown(site)) for each in listed_here]
    return found


def _list_site(session: "ProbeHost", site: "ResolvedSite") -> list[ListedSite]:
    module = session.module(site.object)
    name, offset = site.function.demangled, site.offset

    def entry(address: int, verdict: str | Refusal) -> ListedSite:
        inside = address - site.address if site.kind in EACH or site.kind == "return" else offset
        strategy, refusal = (verdict, None) if isinstance(verdict, str) else (None, verdict)
        return ListedSite(site.canonical, site.object.name, name, inside, address, strategy, refusal)

    code = _code_of(session, site, module)
    if isinstance(code, Refusal):
        return [entry(site.address, code)]
    if site.kind == "return" and code.exits.complete is not None:
        return [entry(site.address, code.exits.complete)]
    if site.kind == "return" and not code.exits.found:
        return [entry(site.address, Refusal(Reason.NO_EXIT, site.address, NEVER_RETURNS))]
    session.splicing.planning.allow_near_heap(module)
    plan = _planned_at(session, module, code, site)[1]
    found = [entry(address, verdict) for address, verdict in _outcomes(plan, module.bias)]
    doubts = code.reachability.in_doubt() if site.kind in EACH else ()
    return [*found, *(entry(why.address + module.bias, why) for why in doubts)]


def _served(plan: FunctionPlan) -> dict[Want, PlannedSplice]:
    """Return the wants that a plan serves, each with a splice that does; an exit may be served by several."""
    wants = [(want, splice) for splice in plan.splices for want in splice.wants if want.kind is not WantKind.LOOP]
    return {want.origin or want: splice for want, splice in wants}
