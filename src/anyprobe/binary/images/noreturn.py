"""Functions that never return, by name, and the PLT stubs that lead to them."""

import re
from collections.abc import Sequence

import numpy as np

from anyprobe.binary.objects.functions import FunctionTable
from anyprobe.binary.objects.relocations import Relocations
from anyprobe.binary.objects.stubs import SlotJump, imported_slots
from anyprobe.binary.objects.symbols import SymbolTable
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
    functions: FunctionTable, dynamic: SymbolTable | None, fixes: Relocations, jumps: Sequence[SlotJump]
) -> frozenset[int]:
    """Return the starts of functions and of PLT stubs that never return."""
    found: set[int] = set()
    for number, table in enumerate(functions.tables):
        mine = functions.symbols.table == number
        names, values = table.symbols["name"][functions.symbols.index[mine]], functions.symbols.value[mine]
        found.update(int(values[row]) for row, name in table.spelled(names, NEVER_RETURN).items() if "@" not in name)
        if any(head in table.strings for head in _THROWER_HEADS):
            offsets = [hit.start() for hit in _THROWER_BYTES.finditer(table.strings)]
            found.update(values[among(names, np.array(offsets, np.uint32))].tolist())
    if dynamic is not None:
        slots = _noreturn_slots(dynamic, fixes)
        found.update(jump.start for jump in jumps if jump.slot in slots)
    return frozenset(found)


_THROWER_BYTES = re.compile(rb"(?<=\0)(?:" + _THROWERS.pattern.encode() + rb")(?=\0)")
_THROWER_HEADS = (b"\0_ZSt", b"\0_ZN4core9panicking", b"\0_RNv", b"\0_RINv", b"\0runtime.")
"""How the names begin that the expression finds, in strings of most of which none does: it takes a while."""


def _noreturn_slots(dynamic: SymbolTable, fixes: Relocations) -> frozenset[int]:
    """Return the GOT slots that lead to functions that never return."""
    return frozenset(slot for slot, name in imported_slots(dynamic, fixes).items() if never_returns(name))
