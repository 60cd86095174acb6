"""How much time the generated routines of timing take: they are run, here, between other code like a program's.

The routines lie in memory of this process, in the form in which they are about to be written into a program, with their
patches around them. Two small programs, once with probes and once without, run by turns: a loop that calls a function
which does next to nothing, and one that calls itself. The code takes the place of this thread's stack protector for the
thread's slot, so all signals are blocked while it runs, and nothing else of this thread does.
"""

import ctypes
import mmap
import signal
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.callers import CallerTables
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.data.snapshots.costs import UNIT, Costs
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.routines import RoutineFacts, Routines, assemble_routines

if TYPE_CHECKING:
    from collections.abc import Iterator

_SLOT = 0x28
"""Where a thread has its stack protector, from the thread pointer."""
_CODE = 1 << 16
_ROUTINES, _SAMPLES = 0x6000, 20
_CALLS = 1000
_DEPTH, _CALLS_IN_DEPTH = 14, 1219
"""The argument of Fibonacci's function, and how often it is called for that."""
_IN_THE_LEAF = 1 / 3
"""The leaf's share of what a call of the loop's function takes without probes: two instructions of six."""
_TICKS = "lfence; rdtsc; shl rdx, 32; or rax, rdx; lfence"


@dataclass(frozen=True, slots=True)
class Trial:
    """The ticks of a small program, per call, without probes and with them; and those that were measured of a call."""

    plain: float
    probed: float
    inside: float
    pace: float
    """The ticks of a trial of the pace meanwhile."""


def calibrated(like: BankLayout) -> Costs:
    """Return what probes cost by banks of a form; the doubt is by how much two programs differ in that."""
    with _blocked():
        bench = _Bench(like)
        leaf, tree, passes = (bench.trial(name) for name in ("leaf", "tree", "passes"))
        jumps = bench.trial("jumps") if like.callers else None
    wholes = [trial.probed - trial.plain for trial in (leaf, tree)]
    whole, inside = sum(wholes) / 2, leaf.inside - leaf.plain * _IN_THE_LEAF
    entered = ended = inside / 2
    jumping = max(jumps.probed - jumps.plain - entered, 0.0) if jumps else whole - entered
    return Costs(
        entered=_parts(entered), left=_parts(whole - entered), ended=_parts(ended),
        jumped=_parts(jumping / 2), came_back=_parts(jumping / 2), came=_parts(ended),
        passed=_parts(max(passes.probed - passes.plain, 0.0)),
        pace=_parts((leaf.pace + tree.pace) / 2), doubt=abs(wholes[0] - wholes[1]) / whole,
    )  # fmt: skip


def code_of(like: BankLayout) -> bytes:
    """Return the routines by banks of a form as they would lie at a certain address: they tell what was measured."""
    return assemble_routines(RoutineFacts(_layout(like), 1 << 30, 1 << 29, _SLOT), 1 << 28)[0]


def _layout(like: BankLayout) -> BankLayout:
    layout = BankLayout(4, 4, 64, callers=like.callers, nested=like.nested, nodes=like.nodes, by_thread=like.by_thread,
        on_processors=like.on_processors,
    )  # fmt: skip
    layout.threads = 1
    return layout


def _parts(ticks: float) -> int:
    return round(ticks * UNIT)


@contextmanager
def _blocked() -> "Iterator[None]":
    """Have no handler of a signal run on this thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Bench:
    """Routines, and small programs that come by them."""

    def __init__(self, like: BankLayout) -> None:
        layout = _layout(like)
        self._records = [layout.new_record() for _ in range(2)]
        size = _CODE + at.HEADER_BYTES + layout.size
        self._memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._layout, self._gate, self._bank = layout, self._base + _CODE, self._base + _CODE + at.HEADER_BYTES
        facts = RoutineFacts(layout, self._bank, self._gate, _SLOT)
        code, routines, _ = assemble_routines(facts, self._base)
        assert len(code) <= _ROUTINES
        self._memory[: len(code)] = code
        self._memory[_CODE : _CODE + 8] = b"\xff" * 8
        # the word there that stands for a thread's page is 0, as if it had never lost its processor
        first = _CODE + at.HEADER_BYTES + layout.blocks_offset + at.BLOCK_PAGE_OF
        self._memory[first : first + 4] = threading.get_native_id().to_bytes(4, "little")
        asm = Assembler()
        asm.raw(b"\xcc" * _ROUTINES, "routines")
        _programs(asm, routines, self._records, self._gate + 16)
        content = asm.finish(self._base)
        self._memory[_ROUTINES : len(content)] = content[_ROUTINES:]
        self._starts = {name: self._base + asm.offset_of(name) for name in _NAMES}
        if layout.callers:
            tables = CallerTables(memoryview(self._memory)[_CODE + at.HEADER_BYTES :][: layout.size], layout)
            point = self._base + asm.offset_of("jumps_probed_point")
            tables.set(point, self._records[0], at.CALLER_WATCHED)
            tables.set(self._base + asm.offset_of("passes_probed_point"), self._records[1], at.CALLER_WATCHED)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(self._base), _CODE, mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "mprotect")

    def trial(self, name: str) -> Trial:
        """Run a program by turns without and with probes; the slowest runs do not count, they were interrupted."""
        calls = _CALLS_IN_DEPTH if name == "tree" else _CALLS
        plain, probed = (
            ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(self._starts[f"{name}_{form}"])
            for form in ("plain", "probed")
        )
        runs = []
        for number in range(_SAMPLES + 4):
            before = self._words()
            one, other = plain(calls), probed(calls)
            count, ticks, trials, tried = (now - then for now, then in zip(self._words(), before, strict=True))
            if number >= 4:  # caches and predictors know the code by then
                runs.append((other / calls, one / calls, ticks / max(count, 1), trials, tried))
        counted = sorted(runs)[: _SAMPLES * 3 // 4]
        without, probes, insides = (median(run[at] for run in counted) for at in (1, 0, 2))
        return Trial(without, probes, insides, sum(run[4] for run in counted) / max(sum(run[3] for run in counted), 1))

    def _words(self) -> tuple[int, ...]:
        """Return the calls that were recorded and their ticks, and the same of trials."""
        start = _CODE + at.HEADER_BYTES + self._layout.blocks_offset
        words, record = memoryview(self._memory)[start:].cast("Q"), self._records[0] // 8
        places = (
            record + at.RECORD_COUNT // 8, record + at.RECORD_SUM // 8, at.BLOCK_TRIALS // 8, at.BLOCK_TRIED // 8,
        )  # fmt: skip
        return tuple(words[place] for place in places)


_NAMES = [f"{name}_{form}" for name in ("leaf", "tree", "jumps", "passes") for form in ("plain", "probed")]
_BEGIN = f"""
    push rbx; push rbp; push r12; push r13; push r14; push r15
    mov ebx, edi; mov r13, slot
    mov r12, fs:[{_SLOT}]; mov rax, [r13]; mov fs:[{_SLOT}], rax
    {_TICKS}
    mov r14, rax; mov eax, 1
"""
_END = f"""
    {_TICKS}
    sub rax, r14
    mov rdx, fs:[{_SLOT}]; mov [r13], rdx; mov fs:[{_SLOT}], r12
    pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx; ret
"""
_LOOP = "{0}_again:\n mov rdi, rax; call {0}_function"
_BACK = "dec ebx; jnz {0}_again"
_FIBONACCI = """
    {0}_function:
        {1}
        lea rsp, [rsp-8]; mov rbx, rdi
        lea rdi, [rdi-1]; call {0}_function
        mov rbp, rax; lea rdi, [rbx-2]; call {0}_function
        add rax, rbp; lea rsp, [rsp+8]
        pop rbx; pop rbp
        {2}
    {0}_base:
        mov rax, rdi
        {3}
"""


def _programs(asm: Assembler, routines: Routines, records: Sequence[int], slot: int) -> None:
    """Emit the programs, each with and without probes."""
    point = at.JUMPED | at.CERTAIN
    probes = {
        "enter": (routines.enter, records[0]),
        "leave": (routines.leave, records[0]),
        "tail": (routines.leave_tail, records[0]),
        "caller": (routines.leave_caller, records[0] | point),
        "other": (routines.leave_caller, records[1] | point),
    }
    values: dict[str, int] = {"slot": slot}
    for name, (routine, argument) in probes.items():
        values |= {f"{name}_routine": routine, f"{name}_argument": argument}
    for name in ("leaf", "tree", "jumps", "passes"):
        for form in ("plain", "probed"):
            asm.label(f"{name}_{form}")
            asm.code(_BEGIN, **values)
            asm.code(_text_of(name, f"{name}_{form}", probed=form == "probed"), **values)


def _text_of(name: str, prefix: str, *, probed: bool) -> str:
    """Return the listing of one program: what is run, the functions that it calls, and the patches."""
    patches: list[str] = []

    def patched(kind: str, displaced: str, *, returns: bool = False) -> str:
        """Return instructions, or a jump to a patch that has them."""
        if not probed:
            return displaced
        patch = f"{prefix}_patch{len(patches)}"
        probe = "\n".join(
            f"lea rsp, [rsp-128]; push {each}_argument; call {each}_routine; lea rsp, [rsp+136]"
            for each in kind.split()
        )
        patches.append(f"{patch}:\n{probe}\n{displaced}\n" + (f"jmp {patch}_back" if not returns else ""))
        return f"jmp {patch}\n{patch}_back:"

    loop, back = _LOOP.format(prefix), _BACK.format(prefix)
    body, returned = "lea rax, [rdi+rdi*2+1]", ""
    if name == "tree":
        entry = patched("enter", f"cmp rdi, 2; jb {prefix}_base; push rbp; push rbx")
        exits = patched("leave", "ret", returns=True), patched("leave", "ret", returns=True)
        function = _FIBONACCI.format(prefix, entry, *exits)
        loop, back = f"mov edi, {_DEPTH}; call {prefix}_function", ""
    elif name == "leaf":
        entry = patched("enter", body)
        function = f"{prefix}_function:\n{entry}\n{patched('leave', 'ret', returns=True)}"
    elif name == "passes":
        returned = patched("other", "nop")
        function = f"{prefix}_function:\n{body}; ret"
    else:
        returned = patched("caller", "nop")
        entry = patched("enter tail", f"jmp {prefix}_next", returns=True)
        function = f"{prefix}_function:\n{entry}\n{prefix}_next:\n{body}; ret"
    after = "\n".join(patches)
    return f"{loop}\n{prefix}_point:\n{returned}\n{back}\n{_END}\n{function}\n{after}"
