"""What handlers in the kernel are passed: by a function's type, in registers, or by a tracepoint."""

from dataclasses import replace

from anyprobe.core.code import Input, InputKind
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.bpf.layouts import AT_TRACEPOINT, Passed, argument_of
from anyprobe.handlers.types.annotations import Layout, PointerType
from anyprobe.handlers.types.btf_types import types_of
from anyprobe.handlers.types.calling_convention import Prototype
from anyprobe.handlers.types.layouts import StructType
from anyprobe.probes.providers.kernel.counters import GO_ON
from anyprobe.probes.providers.kernel.places.sites import FunctionType, KernelSite
from anyprobe.probes.providers.kernel.places.user_pointers import declared

_SAVED = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "", "rip",
    "", "rflags", "rsp",
)  # fmt: skip
"""The registers of ``struct pt_regs``, a word each."""
_WORDS = {name: word for word, name in enumerate(_SAVED) if name}
EVERYWHERE = frozenset({"tid", "pid", "cpu", "now", "comm", "uid", "gid", "cgroup", "ustack", "kstack"})
"""The attributes of ``ctx`` that there are in all handlers."""
CALLER = "caller"
"""Where the function returns to: splices tell it, which replace no return address."""
_RETURNED = 2
"""The word of the record of a system call's end that has the result."""
_AT_A_FUNCTION = {"entry": {"func", "ip", "regs"}, "return": {"func", "retval", "regs"}, "offset": {"ip", "regs"}}


def attributes(site: KernelSite, *, spliced: bool = False) -> frozenset[str]:
    """Return the attributes of ``ctx`` that there are at a site; ``spliced``: by a patch at both ends of functions."""
    if spliced and site.function is not None and site.kind != "offset":
        return attributes(site) | {CALLER}
    if site.file is not None:  # of which the kernel does not tell the function
        return EVERYWHERE | _AT_A_FUNCTION[site.kind] - {"func"}
    return EVERYWHERE if site.function is None else EVERYWHERE | _AT_A_FUNCTION[site.kind]


def prototype(site: KernelSite, found: FunctionType | None) -> Prototype:
    """Return what BTF says of a function; raise ``UnsupportedTarget`` where that is nothing, or nothing of use."""
    if site.event is not None:
        raise UnsupportedTarget("timers and events pass nothing")
    if site.file is not None:
        raise UnsupportedTarget(f"the kernel does not know the types of {site.name}")
    if found is None:
        raise UnsupportedTarget(f"BTF has no type of {site.name} alone")
    whole = types_of(found.types).prototype(site.name, found.prototype)
    function = site.name if site.function is None else site.function.name
    return replace(whole, parameters=declared(function, whole.parameters))


def by_type(site: KernelSite, found: FunctionType) -> Passed:
    """Return what a program of a function's entry or exit is passed: its parameters' words, then its result."""
    firsts, end = [], 0
    pointers: set[int] = set()
    for _, kind in prototype(site, found).parameters:
        firsts.append(end)
        if isinstance(kind, PointerType) and isinstance(kind.element, StructType):
            pointers.add(end)
        end += -(-kind.size // 8) if isinstance(kind, Layout) else 1

    def word(given: Input) -> int | None:
        if argument_of(given.place) is not None:  # of a system call, whose function is passed the saved registers
            return None
        if given.kind is InputKind.PARAMETER:
            byte = int(given.name.partition("@")[2] or 0)
            return firsts[given.index] + byte // 8 if given.index < len(firsts) else None
        return end if given.name == "retval" else None

    return Passed(
        word, kernel_memory=True, at_function=True, pointers=frozenset(pointers), enters=site.kind == "entry", saved=0
    )


def by_tracepoint_type(known: Prototype) -> Passed:
    """Return what a program of a tracepoint by its type is passed, some of it as pointers that the verifier knows."""
    pointers = frozenset(
        word
        for word, (_, kind) in enumerate(known.parameters)
        if isinstance(kind, PointerType) and isinstance(kind.element, StructType)
    )
    return Passed(AT_TRACEPOINT.word, kernel_memory=True, pointers=pointers)


def by_registers(site: KernelSite) -> Passed:
    """Return what a program of a kprobe or kretprobe is passed: the registers."""
    if site.kind == "offset" or site.file is not None:  # where the kernel does not tell the address
        return Passed(
            lambda given: _WORDS["rip"] if given.name == "ip" else _saved(given),
            kernel_memory=site.file is None,  # nothing that a program is passed leads into the kernel
        )
    return Passed(
        _saved, kernel_memory=True, at_function=True, frame=_WORDS["rsp"], enters=site.kind == "entry",
        saved=_WORDS["rdi"],
    )  # fmt: skip


BY_TRACEPOINT = Passed(AT_TRACEPOINT.word, kernel_memory=True)
"""What a program of a raw tracepoint is passed."""
BY_RECORD = Passed(lambda given: _RETURNED if given.name == "retval" else None, kernel_memory=True, result=GO_ON)
"""What a program of a tracepoint is passed: the record, of which inputs say where they are."""


def _saved(given: Input) -> int | None:
    """Return the word of the saved registers that holds something, None if none does."""
    if given.kind is InputKind.PARAMETER:
        return _WORDS.get(given.place)
    if given.kind is InputKind.REGISTER:
        return _WORDS.get(given.name)
    return _WORDS["rax"] if given.name == "retval" else None
