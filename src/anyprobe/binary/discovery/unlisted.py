"""Functions that neither a symbol nor an unwind entry tells of: code between the others that is called or pointed to.

Programs that were compiled without unwind tables and stripped consist of them; elsewhere it is hand-written code. They
begin where a direct call leads, where a stored pointer points, or where a jump leaves another one; what only an
instruction takes the address of may be a table, and has to show that it is code. They end after the last instruction
that control comes to, as far as that can be followed, and before the next one.

A stored pointer may be an entry of a jump table, too. It is taken for that of a function only if the code there keeps
its stack in balance, and if no jump looks it up in a table of addresses.
"""

from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from iced_x86 import Code, Mnemonic, OpKind, Register

from anyprobe.binary.decoding.code_scan import CodeBytes, calls_into, code_bytes, leas_into, words_into
from anyprobe.binary.decoding.stack_depth import Seen, seen_in
from anyprobe.binary.discovery.gap_code import GapCode
from anyprobe.binary.discovery.gap_functions import Division
from anyprobe.binary.discovery.gap_starts import TAKERS
from anyprobe.binary.discovery.gaps import Gaps
from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.flow.noreturn_flow import NoReturnFunctions
from anyprobe.binary.objects.text import ModuleText
from anyprobe.isa.decode import CALLS, Flow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.isa.decode import Insn

    Positions = NDArray[np.int64]

_MOST_ROUNDS = 6
_NEVER_COME_TO = frozenset({Mnemonic.HLT, Mnemonic.UD2, Mnemonic.NOP})
_OF_CRT1 = {(Mnemonic.POP, Register.RSI), (Mnemonic.AND, Register.RSP)}
_CALL_BYTES, _LEA_BYTES, _NUMBER_BYTES = 5, 6, (4, 8)


class Unlisted(NamedTuple):
    """Functions that nothing lists, ascending."""

    starts: "Positions"
    ends: "Positions"
    called: "Positions"
    """The starts that a call, or the loader, leads to."""


class _Addresses(NamedTuple):
    """Addresses that may be functions'."""

    stored: set[int]
    taken: set[int]
    """By instructions of functions that are listed."""


def unlisted_functions(
    text: ModuleText, certain: "Positions", pointers: "Positions", *, entry: int = 0, has_data: bool = False
) -> Unlisted:
    """Return the functions outside of those of ``text``, among which are the linker's stubs.

    ``certain`` are called by the loader, at ``entry`` the program begins; ``pointers`` are stored somewhere. Where the
    ranges may have data among them, ``has_data``, only calls count.
    """
    code = code_bytes(text)
    gaps = Gaps(code, text.function_starts, text.function_ends)
    called = gaps.holding(certain)
    addresses = None if has_data else _Addresses(gaps.holding(pointers), set())
    known = frozenset(text.function_starts.tolist()) | text.noreturn
    seen = Seen(frozenset(), {})
    found = _explored(gaps, text, known, seen, called, addresses)
    if found.explains_everything():
        bounds = Division(found, are_closed=True).bounds()
    else:
        maps = [listed := CodeMap(text)]
        called |= _called_from(code, gaps, listed) | _main_function(gaps, listed, entry)
        if addresses is not None:
            addresses.taken.update(_taken_in(code, gaps, listed))
        before = None
        for _ in range(_MOST_ROUNDS):
            found = _explored(gaps, text, known, seen, called, addresses)
            division = Division(found, are_closed=False)
            bounds = division.bounds()
            if bounds == before:
                break
            maps.append(_with_more(text, bounds))
            before, seen = bounds, _look_at(maps[-1], division.jumping)
        for each in maps:
            each.forget()
    starts, ends = np.array(bounds, np.int64).reshape(-1, 2).T
    confirmed = [start for start in starts.tolist() if start in found.called]
    return Unlisted(starts, ends, np.array(confirmed, np.int64))


def _explored(
    gaps: Gaps,
    text: ModuleText,
    known: Container[int],
    seen: Seen,
    called: Collection[int],
    addresses: "_Addresses | None",
) -> GapCode:
    """Follow what leads into the gaps, without the pointers that lead into the middle of other instructions."""
    refused: set[int] = set()
    while True:
        found = GapCode(gaps, text, known, seen, refused)
        found.begin(called)
        if addresses is not None:
            found.take(*addresses)
        doubtful = found.doubtful()
        if not doubtful:
            return found
        refused |= doubtful


def _with_more(text: ModuleText, bounds: list[tuple[int, int]]) -> CodeMap:
    """Return the known functions and some more."""
    starts = np.concatenate([text.function_starts, np.array([start for start, _ in bounds], np.int64)])
    ends = np.concatenate([text.function_ends, np.array([end for _, end in bounds], np.int64)])
    order = np.argsort(starts)
    return CodeMap(replace(text, function_starts=starts[order], function_ends=ends[order]))


def _look_at(code_map: CodeMap, jumping: Iterable[int]) -> Seen:
    """Analyse some functions together with the known ones; ``jumping`` are those with indirect jumps."""
    found = map(code_map.function_at, jumping)
    return seen_in((each for each in found if isinstance(each, FunctionCode)), code_map.analyses.get(NoReturnFunctions))


def _called_from(code: tuple[CodeBytes, ...], gaps: Gaps, listed: CodeMap) -> set[int]:
    """Return where in the gaps calls of the known functions lead."""
    targets, sources = calls_into(code, *gaps.bounds())
    return _certain(listed, targets, sources + _CALL_BYTES, lambda one: one.flow is Flow.CALL)


def _main_function(gaps: Gaps, listed: CodeMap, entry: int) -> set[int]:
    """Return what the code at which the program begins hands on as its first argument, if that is the C library's.

    It takes the number of arguments from the stack and aligns that, calls one function, which never comes back, and
    hands ``main`` on to it.
    """
    code = listed.function_at(entry)
    calls = [place for place, flow in code.turns if flow in CALLS] if isinstance(code, FunctionCode) else []
    if not isinstance(code, FunctionCode) or len(calls) != 1 or code.turns[0][0] != calls[0]:
        return set()
    number, last, seen = -1, calls[0], set()
    for one in code.iced[:last]:
        seen.add((one.mnemonic, one.op0_register))
        if one.op0_kind == OpKind.REGISTER and one.op0_register in (Register.RDI, Register.EDI):
            is_near = one.code == Code.LEA_R64_M and one.memory_base == Register.RIP
            is_number = one.code in TAKERS and not listed.text.is_pie
            number = one.memory_displacement if is_near else one.immediate(1) & 0xFFFF_FFFF if is_number else -1
    ends = last + 1 == len(code.iced) or code.iced[last + 1].mnemonic in _NEVER_COME_TO
    return {number} if ends and seen >= _OF_CRT1 and gaps.number(number) is not None else set()


def _taken_in(code: tuple[CodeBytes, ...], gaps: Gaps, listed: CodeMap) -> set[int]:
    """Return what in the gaps the known functions take the addresses of."""
    targets, sources = leas_into(code, *gaps.bounds())
    found = _certain(listed, targets, sources + _LEA_BYTES, lambda one: one.iced.code == Code.LEA_R64_M)
    if not listed.text.is_pie:
        values, sources = words_into(code, *gaps.bounds())
        for size in _NUMBER_BYTES:
            found |= _certain(listed, values, sources + size, lambda one: one.iced.code in TAKERS)
    return found


def _certain(listed: CodeMap, targets: "Positions", after: "Positions", is_meant: "Callable[[Insn], bool]") -> set[int]:
    """Return the targets of which an instruction of a function, of some kind, ends at ``after``."""
    found: set[int] = set()
    for target, end in zip(targets.tolist(), after.tolist(), strict=True):
        function = listed.containing(end - 1) if target not in found else None
        if function is None or function.broken is not None:
            continue
        insn = function.covering(end - 1)
        if insn is not None and insn.end == end and is_meant(insn) and function.is_site(insn.address):
            found.add(target)
    return found
