"""What is called before ``prctl`` and ``syscall``: it sees a thread forbid itself the time stamp counter.

``prctl(PR_SET_TSC)`` does, and the strict mode of seccomp. From then on, reading the counter is a SIGSEGV, in the
vdso's clock too. So a word says it before, and whatever reads the counter looks at that first.
"""

from functools import cache

from anyprobe.binary.restrictions.raw_calls import FILTERING, PRCTL, SECCOMP
from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.isa.encode import machine_code
from anyprobe.isa.leaf import leaf
from anyprobe.splice.userspace.seccomp_hook import SETTERS, filter_at_call

_SET_TSC, _FORBIDDEN = 26, 2
_SET_SECCOMP, _STRICT = 22, 1
_SET_MODE_STRICT = 0
"""The operation of the system call ``seccomp``."""
_LOADED = {
    PRCTL: ((f"mov edi, {_SET_TSC}",), (f"mov edi, {_SET_SECCOMP}", f"mov esi, {_STRICT}")),
    SECCOMP: (("xor edi, edi",),),
}
"""By system call: what loads parameters that forbid it."""


@cache
def _check(registers: tuple[str, ...], number: int | None) -> NativeCode:
    """Return the code for two parameters, or for a system call's number and two parameters; its storage is the word.

    ``number``: the system call's, if that is known.
    """
    inputs = tuple(Input(InputKind.REGISTER, name) for name in registers)
    first = 8 * (len(registers) - 2)
    by_number = f"""
        mov eax, [rdi]
        cmp eax, {SECCOMP}; je short mode
        cmp eax, {PRCTL}; jne short out
    """
    listing = f"""
        {by_number if first else "jmp short mode" if number == SECCOMP else ""}
        mov eax, [rdi+{first}]; mov ecx, [rdi+{first + 8}]
        cmp eax, {_SET_TSC}; jne short other
        cmp ecx, {_FORBIDDEN}; je short forbidden
        jmp short out
    other:
        cmp eax, {_SET_SECCOMP}; jne short out
        cmp ecx, {_STRICT}; jne short out
        jmp short forbidden
    mode:
        mov eax, [rdi+{first}]; cmp eax, {_SET_MODE_STRICT}; jne short out
    forbidden:
        mov rax, [rdi+{first + 16}]
        mov dword [rax], 1
    out:
        ret
    """
    return leaf(listing, (*inputs, Input(InputKind.STORAGE)), clobbers="rax rcx flags")


def _is_loaded(number: int, near: bytes) -> bool:
    """Return whether code loads parameters by which a system call forbids it."""
    return any(all(machine_code(each) in near for each in ways) for ways in _LOADED[number])


class ClockChecks:
    """The checks for the time stamp counter, by place."""

    functions = SETTERS
    numbers = FILTERING

    def at_function(self, *, numbered: bool) -> NativeCode:
        """Return the code for ``prctl(option, …)``, or for ``syscall(number, option, …)``."""
        return _check(("rdi", "rsi", "rdx") if numbered else ("rdi", "rsi"), PRCTL)

    def at_call(self, number: int, *, near: bytes | None, is_go: bool) -> NativeCode:
        """Return the code for a place that comes to a system call; ``near``: the bytes around, if they can be read.

        The parameters may be in their registers already, or be loaded there.
        """
        if not is_go and near is not None and _is_loaded(number, near):
            return filter_at_call()
        return _check(("rbx", "rcx") if is_go else ("rdi", "rsi"), number)
