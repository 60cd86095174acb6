"""Runs the routine of a kernel's handlers natively: ``gs`` leads to memory of this process, functions are made up.

Run as a process of its own, since wrong code may do anything. Reads a list of cases from standard input as JSON, each a
handler by name and words of its site; prints what each has collected, and what was not preserved.
"""

import ctypes
import json
import random
import struct
import sys

from kernel_handlers import HANDLERS
from routine_machine import ENTER, FLAGS, REGS, STACK, STATUS, Machine

from anyprobe.core.code import MISSES, InputKind
from anyprobe.data.readers.rings import RingReader
from anyprobe.data.readers.tables import TableView
from anyprobe.handlers.compile_cache import native_code, spliced_code
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.context import InstanceLayout
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types.storages import Ring, Table
from anyprobe.isa.assemble import Assembler
from anyprobe.probes.providers.kernel.passing import EVERYWHERE
from anyprobe.probes.providers.kernel.splices.shared_storages import of_processors
from anyprobe.splice.codegen.patch import PatchWriter
from anyprobe.splice.kernel import call_data
from anyprobe.splice.kernel.handlers import FUNCTIONS, Kernel, KernelHandler, assemble
from anyprobe.splice.kernel.patches import count, handle
from anyprobe.splice.plan.splices import Clobbers

PROCESSORS, PROCESSOR = 2, 1
PREEMPT, NUMBER, CURRENT, GUARD, HITS = 0x100, 0x108, 0x110, 0x118, 0x120
ROUTINES, STUBS, TASK, LOST, MISSED, RESCHEDULED = (
    0x10000, 0x18000, 0x1A000, 0x1B000, 0x1B800, 0x1BC00,
)  # fmt: skip

ATTRIBUTES = EVERYWHERE | {"func", "ip", "regs", "retval", "data"}
_SYSCALL, _ARCH_PRCTL, _SET_GS = 158, 158, 0x1001


class KernelMachine(Machine):
    """Memory in which a handler's routine lies, and what a kernel has for it."""

    def __init__(self):
        super().__init__()
        ctypes.CDLL(None).syscall(_ARCH_PRCTL, _SET_GS, ctypes.c_void_p(self.base))
        self.word(CURRENT, self.base + TASK)
        self.put(NUMBER, struct.pack("<I", PROCESSOR))
        self.put(TASK, struct.pack("<II16s", 4321, 1234, b"a name"))
        self.put(TASK + 0x40, struct.pack("<Q", self.base + TASK + 0x80))
        self.put(TASK + 0x80, struct.pack("<II", 1000, 100))
        trash = "; ".join(f"mov {name}, 0x7eadbeef" for name in ("rcx", "rdx", "r8", "r9", "r10", "r11"))
        # what lies at 64 and below is not mapped; whatever else is asked for is copied
        copy, text = (
            f"""
                cmp rsi, 64; jbe bad; xor eax, eax
            more:
                cmp rax, rdx; je done
                mov cl, [rsi+rax]; mov [rdi+rax], cl; inc rax; {ends}
                jmp more
            done:
                {result}; {trash}; ret
            bad:
                mov rax, -14; {trash}; ret
            """
            for ends, result in (("nop", "xor eax, eax"), ("test cl, cl; jz done", "nop"))
        )
        at, functions = STUBS, {}
        bodies = {name: text if name.startswith("strncpy") else copy for name in FUNCTIONS}
        bodies[FUNCTIONS[-1]] = f"mov rax, 123456789; {trash}; ret"
        for name, body in bodies.items():
            asm = Assembler()
            asm.code(body)
            code = asm.finish(self.base + at)
            self.put(at, code)
            functions[name] = self.base + at
            at += len(code) + 15 & -16
        members = {"pid": 0, "tgid": 4, "comm": 8, "cred": 0x40, "uid": 0, "gid": 4}
        self.put(at, b"\x48\xff\x05" + self.rel(at + 7, RESCHEDULED) + b"\xc3")  # inc qword [rescheduled]; ret
        self.kernel = Kernel(PREEMPT, NUMBER, CURRENT, members, functions, reschedule=self.base + at)
        self.regions = []

    def share(self, size):
        region = ctypes.create_string_buffer(size + 64)
        self.regions.append(region)
        skip = -ctypes.addressof(region) % 64
        return ctypes.addressof(region) + skip, memoryview(region).cast("B")[skip : skip + size]

    def place(self, function, setting, *, enters=False, calls=0, compiled=spliced_code, by_clock=False, at_once=0):
        """Return a handler that is placed, with views of its storages."""
        found = intermediate(function, setting)
        stores = tuple(of_processors(each, PROCESSORS, by_clock=by_clock) for each in found.storages)
        code = compiled(found._replace(storages=stores))
        shared = [self.share(each.layout.size) for each in stores]
        handler = KernelHandler(
            code,
            tuple(address for address, _ in shared),
            self.base + MISSED,
            GUARD,
            self.base + LOST,
            calls,
            enters,
            by_clock,
            at_once,
        )
        return handler, [_view(store, view) for store, (_, view) in zip(stores, shared, strict=True)]

    def patch(self, handlers):
        """Have the code that is run lead through handlers, one after the other."""
        start = self.build_start()
        writer = PatchWriter(self.base + ENTER + len(start))
        at = ROUTINES
        for handler in handlers:
            code = assemble(self.kernel, handler, self.base + at)
            assert len(code) <= handler.bytes, (len(code), handler.bytes)
            self.put(at, code)
            writer.action(count(HITS), Clobbers())
            place = (self.base + 0x1234, self.base + 0x5678) if handler.asks_place else (0, 0)
            writer.action(handle(self.base + at, 8 if handler.guarded else None, *place), Clobbers())
            at += len(code) + 15 & -16
        self.put(ENTER, self.build_end(start + writer.finish()))

    def hit(self, registers, context=0, taken=()):
        """Run the patch once; return what it has not preserved."""
        sp = STACK + 0x8000
        given = [registers.get(name, random.getrandbits(64)) for name in _NAMES]
        given[4] = self.base + sp
        self.put(sp, struct.pack("<2Q", self.base + 0x7777, 55) + random.randbytes(64))
        stack = self.memory[sp : sp + 0x100]
        flags = random.getrandbits(12) & STATUS & ~0x400 | 0x202  # a kernel's code has the direction flag clear
        self.put(PREEMPT, struct.pack("<I", context))
        self.put(GUARD, bytes(level in taken for level in range(3)))
        self.put(REGS, struct.pack("<16Q", *given))
        self.word(FLAGS, flags)
        self.enter()
        after = struct.unpack_from("<16Q", self.memory, REGS)
        lost = [name for name, old, new in zip(_NAMES, given, after, strict=True) if old != new]
        if (struct.unpack_from("<Q", self.memory, FLAGS)[0] ^ flags) & STATUS:
            lost.append("flags")
        if self.memory[sp : sp + 0x100] != stack:
            lost.append("stack")
        if struct.unpack_from("<I", self.memory, PREEMPT)[0] != context:
            lost.append("preempt count")
        if self.memory[GUARD : GUARD + 3] != bytes(level in taken for level in range(3)):
            lost.append("guard")
        return lost


_NAMES = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{n}" for n in range(8, 16)))


def _view(store, view):
    if isinstance(store, Table):
        return TableView(view, store.layout)
    assert isinstance(store, Ring)
    return RingReader(view, store.layout)


def _shown(view, *, times=False):
    if isinstance(view, TableView):
        found = view.result()
        return {
            str(key if len(key) != 1 else key[0]): [cell.count, cell.sum if cell.sum is None else int(cell.sum)]
            for key, cell in found.entries.items()
        }
    return [
        [value if not isinstance(value, bytes) else value.decode() for value in row.tolist()[not times :]]
        for row in view.drain()
    ]


def run(case):
    machine, functions = KernelMachine(), HANDLERS[case["handler"]]
    instance, storages = InstanceLayout(), {}
    address, table = machine.share(call_data.size(call_data.CALLS)) if len(functions) > 1 else (0, None)
    # a return's handler can be compiled only when what it loads is known
    settings = [Setting(storages, instance, entry=not at, kernel=ATTRIBUTES) for at in range(len(functions))]
    compiled = native_code if case.get("llvm") else spliced_code
    placed = [
        machine.place(
            function,
            setting,
            enters=not at,
            calls=address,
            compiled=compiled,
            by_clock=case.get("by_clock", False),
            at_once=case.get("at_once", 0),
        )
        for at, (function, setting) in enumerate(zip(functions, settings, strict=True))
    ]
    if table is not None and case.get("open", True):
        table[call_data.OPEN] = 1
        table[call_data.UNDER_WAY] = case.get("under_way", 0)
    machine.patch([handler for handler, _ in placed])
    text = machine.share(64)
    text[1][:6] = b"hello\0"
    lost = []
    for words in case["hits"]:
        values = {name: text[0] if value == "text" else value for name, value in words.get("registers", {}).items()}
        lost += machine.hit(values, words.get("context", 0), words.get("taken", ()))
    views = [_shown(view, times=case.get("by_clock", False)) for view in placed[-1][1]]
    misses = struct.unpack_from(f"<{len(MISSES)}Q", machine.memory, MISSED)
    return {
        "lost": lost,
        "found": views,
        "hits": struct.unpack_from("<Q", machine.memory, HITS)[0],
        "missed": struct.unpack_from("<Q", machine.memory, LOST + 8)[0],
        "misses": list(misses),
        "rescheduled": struct.unpack_from("<Q", machine.memory, RESCHEDULED)[0],
        "guarded": [handler.guarded for handler, _ in placed],
        "free": None if table is None else not any(table[call_data.HEAD_BYTES :: call_data.SLOT_BYTES]),
        "calls": None if table is None else [table[call_data.UNDER_WAY], table[call_data.DROPPED]],
        "asks": [
            sorted({each.name for each in handler.code.inputs if each.kind is InputKind.CONTEXT})
            for handler, _ in placed
        ],
    }


if __name__ == "__main__":
    random.seed(1)
    print(json.dumps([run(case) for case in json.load(sys.stdin)]))
