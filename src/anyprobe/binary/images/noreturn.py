"""Functions that never return, by name, and the PLT stubs that lead to them."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.functions import FunctionTable
from anyprobe.binary.objects.relocations import R_64, R_GLOB_DAT, R_JUMP_SLOT, Relocations
from anyprobe.binary.objects.stubs import stubs_of
from anyprobe.binary.objects.symbols import SymbolTable
from anyprobe.core.address import AddressRange
from anyprobe.core.arrays import among

_NAMES = """
    abort exit _exit _Exit quick_exit __libc_fatal __stack_chk_fail __stack_chk_fail_local __fortify_fail __chk_fail
    __assert_fail __assert_perror_fail __assert __longjmp_chk longjmp _longjmp siglongjmp __libc_siglongjmp
    __libc_longjmp pthread_exit __pthread_exit thrd_exit err errx verr verrx __libc_start_main __libc_start_call_main
    __cxa_throw __cxa_rethrow __cxa_bad_cast __cxa_bad_typeid __cxa_throw_bad_array_new_length __cxa_call_unexpected
    __cxa_call_terminate __cxa_pure_virtual __cxa_deleted_virtual __clang_call_terminate _Unwind_Resume
    _ZSt9terminatev _ZSt10unexpectedv _ZN10__cxxabiv111__terminateEPFvvE _ZN10__cxxabiv112__unexpectedEPFvvE
    rust_begin_unwind rust_panic __rust_start_panic_abort __restore_rt
    Py_Exit Py_FatalError _Py_FatalErrorFunc _Py_FatalErrorFormat _Py_NegativeRefcount
    runtime.throw runtime.fatal runtime.fatalthrow runtime.gopanic runtime.goPanicIndex runtime.goexit0
    runtime.panicdivide runtime.panicshift runtime.panicwrap runtime.goexit1 runtime.gogo runtime.mcall_noreturn
"""
NEVER_RETURN = frozenset(_NAMES.split())
_THROWERS = re.compile(
    r"_ZSt\d+__throw_\w+"
    r"|_ZN4core9panicking(?:11panic_const)?\d+(?:panic|assert_failed|unreachable)\w*"
    r"|_RI?NvNt(?:Nt)?Cs\w+_4core9panicking(?:11panic_const)?\d+(?:panic|assert_failed|unreachable)\w*"
    r"|_RI?NvNtCs\w+_4core(?:6option|6result)\d+(?:unwrap|expect)_failed\w*"
    r"|runtime\.(?:panic(?:Index|Slice|mem|nil)|goPanic)\w*"
)


def never_returns(name: str) -> bool:
    """Return whether a function of this name is known never to return."""
    return name in NEVER_RETURN or _THROWERS.match(name) is not None


def noreturn_addresses(
    elf: ElfFile,
    functions: FunctionTable,
    dynamic: SymbolTable | None,
    fixes: Relocations,
    ranges: Sequence[AddressRange],
) -> frozenset[int]:
    """Return the starts of functions and of PLT stubs that never return."""
    found: set[int] = set()
    for number, table in enumerate(functions.tables):
        offsets = [at for name in NEVER_RETURN for at in _cheap_offsets(table, name)]
        offsets += [hit.start() for hit in _THROWER_BYTES.finditer(table.strings)]
        mine = functions.symbols.table == number
        names = table.symbols["name"][functions.symbols.index[mine]]
        found.update(functions.symbols.value[mine][among(names, np.array(offsets, np.uint32))].tolist())
    if dynamic is not None:
        slots = _noreturn_slots(dynamic, fixes)
        for each in ranges if len(slots) else ():
            found.update(start for start, _, _ in stubs_of(elf, each, slots))
    return frozenset(found)


_THROWER_BYTES = re.compile(rb"(?<=\0)(?:" + _THROWERS.pattern.encode() + rb")(?=\0)")


def _cheap_offsets(table: SymbolTable, name: str) -> list[int]:
    """Return where a name stands in the strings as a whole or as the shared end of a longer one."""
    wanted, found, at = name.encode() + b"\0", [], 0
    while (at := table.strings.find(wanted, at)) >= 0:
        found.append(at)
        at += 1
    return found


def _noreturn_slots(dynamic: SymbolTable, fixes: Relocations) -> NDArray[np.int64]:
    """Return the GOT slots that lead to functions that never return."""
    rows = fixes.of_kind(R_JUMP_SLOT, R_GLOB_DAT, R_64)
    rows = rows[fixes.symbols[rows] < len(dynamic.symbols)]
    keep = [never_returns(dynamic.name(index)) for index in fixes.symbols[rows].tolist()]
    return fixes.offsets[rows][np.array(keep, np.bool_)] if keep else np.empty(0, np.int64)
