"""Simple handlers without LLVM: one update of an aggregation, by keys or not, or one record, perhaps under comparisons.

Counters, sums, extremes, averages and histograms; keys and fields are words of the context or the thread's name. The
code is longer than what LLVM makes of them, and is there in no time: in an emulated machine that is a minute less.
``handlers.llvm.tables`` says why updates need no locks; both may change the same table.
"""

from dataclasses import dataclass

from anyprobe.core.code import MISSES, Input, InputKind, Miss, NativeCode, Number
from anyprobe.data.aggregates.aggregations import Hist, Quantize
from anyprobe.data.layouts import buckets, histogram
from anyprobe.data.layouts.cells import COUNT, MAX, NOT_MIN, SUM, WRAPS, added_exactly
from anyprobe.data.readers.tables import (
    DROPPED,
    MULTIPLIER,
    PROBES,
    ROW_HEAD_BYTES,
    SPARE_WORDS,
    SPARES,
    USED,
    TableLayout,
)
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.passes import bounds
from anyprobe.handlers.types.storages import Ring, Table
from anyprobe.handlers.x86.records import emit_record
from anyprobe.handlers.x86.trivial import CONDITIONS, TO_RAX, Reader, jump_unless
from anyprobe.isa.assemble import Assembler

_COMM_BYTES, _COMM = 16, "comm"
_RECORD_BYTES = 512
"""The most bytes of a record's fields: more is for the other compiler."""
_FIELDS = frozenset({COUNT, SUM, WRAPS, NOT_MIN, MAX})
_CHANGED = frozenset({"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "flags"})


def simple_code(handler: ir.Function) -> NativeCode | None:
    """Return the code of a simple handler, None for any other."""
    reader = _Reader()
    update = reader.update_in(handler.body)
    if handler.result is not None or update is None or len(reader.conditions) > CONDITIONS:
        return None
    parts = [reader.part(each) for each in update.key]
    if any(part is None for part in parts):
        return None
    key = [part for part in parts if part is not None]
    store = handler.storages[update.storage]
    if isinstance(store, Ring):
        fits = 8 * sum(part.words for part in key) <= _RECORD_BYTES
        plain = all(field.kind not in {"f32", "f64"} for field in store.layout.record.fields)
        written = len(store.layout.record.fields) == len(key)
        if update.operation != "emit" or not (fits and plain and written):
            return None
        return _Writer(handler, update.storage, key).record(store, reader)
    value = reader.number(update.values[0]) if update.values else None
    if update.operation != "add" or not isinstance(store, Table) or (value is None and update.values):
        return None
    aggregation = store.layout.aggregation
    if not _FIELDS.issuperset(aggregation.cell.fields):
        return None
    if aggregation.cell.buckets and not isinstance(aggregation, Hist | Quantize):
        return None
    return _TableWriter(handler, update.storage, key, store.layout, value).run(reader)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a key: a number, or the thread's name."""

    number: Number | None = None

    @property
    def words(self) -> int:
        return 1 if self.number is not None else _COMM_BYTES // 8


class _Reader(Reader):
    """Also takes the thread's name, without which nothing is done."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: set[str] = set()
        self._present: set[str] = set()

    @property
    def has_comm(self) -> bool:
        return bool(self._buffers)

    def part(self, expr: ir.Expr | ir.Buffer) -> _Part | None:
        if isinstance(expr, ir.Buffer):
            known = expr.name in self._buffers and expr.size == _COMM_BYTES
            return _Part() if known else None
        number = self.number(expr)
        return None if number is None else _Part(number)

    def passes(self, each: ir.Stmt, end: str) -> bool:
        match each:
            case ir.ReadComm(present, _, buffer):
                self._buffers.add(buffer.name)
                self._present.add(present.name)
                return True
            case ir.If(ir.Unary("not", ir.Local(name, _)), (ir.CountMiss(Miss.ABANDONED), ir.Leave(label)), ()):
                return name in self._present and label == end
            case _:
                return False


class _Writer:
    """Writes the code: ``rbx`` leads to the words, the key or the fields are on the stack."""

    def __init__(self, handler: ir.Function, storage: int, key: list[_Part]) -> None:
        self._handler, self._key, self._asm = handler, key, Assembler()
        self._inputs = [*handler.inputs, Input(InputKind.STORAGE, index=storage), Input(InputKind.THREAD)]
        self._base, self._thread = 8 * len(handler.inputs), 8 * len(handler.inputs) + 8
        self._bytes = 8 * sum(part.words for part in key)

    def record(self, store: Ring, reader: "_Reader") -> NativeCode:
        """Write a record."""
        self._begin(reader)
        now = self._word(InputKind.CONTEXT, "now") if store.by_clock else None
        emit_record(self._asm, store.layout, self._base, self._thread, now)
        self._asm.label("out")
        self._leave()
        return self._finish(reader, 0)

    def _begin(self, reader: "_Reader") -> None:
        asm = self._asm
        asm.code("push rbx; mov rbx, rdi; sub rsp, size", size=self._bytes)
        for each in reader.conditions:
            self._load(each.number)
            asm.code(f"cmp rax, constant; {jump_unless(each)} out", constant=each.constant)
        self._store_key()

    def _leave(self) -> None:
        self._asm.code("add rsp, size; pop rbx; ret", size=self._bytes)

    def _finish(self, reader: "_Reader", more: int) -> NativeCode:
        """Return the code; ``more``: bytes of the stack besides."""
        if reader.has_comm:
            self._without_name()
        stack = 16 + self._bytes + more + 8 * reader.has_comm
        code = self._asm.finish(0)
        return NativeCode(code, tuple(self._inputs), _CHANGED, stack, bounds.steps(self._handler))

    # -- words

    def _load(self, number: Number) -> None:
        """Emit: rax = a word, converted."""
        self._asm.code("mov rax, [rbx+word]", word=8 * number.word)
        for step in number.steps:
            self._asm.code(TO_RAX[step])

    def _word(self, kind: InputKind, name: str = "") -> int:
        """Return where a word is that the code needs besides."""
        found = next((at for at, each in enumerate(self._inputs) if (each.kind, each.name) == (kind, name)), None)
        if found is None:
            self._inputs.append(Input(kind, name))
            found = len(self._inputs) - 1
        return 8 * found

    def _store_key(self) -> None:
        at = 0
        for part in self._key:
            if part.number is not None:
                self._load(part.number)
                self._asm.code("mov [rsp+place], rax", place=at)
            else:
                self._asm.code(
                    "lea rdi, [rsp+place]; mov rax, [rbx+routine]; call rax; test rax, rax; js nameless",
                    place=at,
                    routine=self._word(InputKind.ROUTINE, _COMM),
                )
            at += 8 * part.words

    def _without_name(self) -> None:
        """Emit: the name could not be read, as ``ReadComm`` says it, and so the handler ends."""
        misses = self._word(InputKind.MISSES)
        self._asm.code("nameless:\n mov rax, [rbx+misses]", misses=misses)
        for miss in (Miss.FAULT, Miss.ABANDONED):
            self._asm.code("lock inc qword [rax+counter]", counter=8 * MISSES.index(miss))
        self._asm.code("jmp out")


class _TableWriter(_Writer):
    """Writes an update of an aggregation."""

    def __init__(
        self, handler: ir.Function, storage: int, key: list[_Part], layout: TableLayout, value: Number | None
    ) -> None:
        super().__init__(handler, storage, key)
        self._layout, self._value = layout, value

    def run(self, reader: _Reader) -> NativeCode:
        asm, layout = self._asm, self._layout
        self._begin(reader)
        if self._value is not None:
            self._load(self._value)
            asm.code("mov rdx, rax")
        bucket = self._bucket()
        if self._key:
            asm.code("push rdx; push r8; mov rdi, [rbx+base]; lea rsi, [rsp+16]", base=self._base)
            asm.code("call find; pop r8; pop rdx")
        if layout.rows > 1:
            # a thread without a number of its own is 0, which wraps to the largest
            asm.code(
                """
                    mov rcx, [rbx+thread]; dec rcx; cmp rcx, last; jae shared
                    imul rcx, rcx, stride; add rcx, [rbx+base]
                    add rcx, rows
                """,
                thread=self._thread,
                last=layout.rows - 1,
                stride=layout.stride,
                base=self._base,
                rows=layout.rows_offset + layout.stride,
            )
            self._update("own", "", bucket=bucket)
        asm.code(
            """
            shared:
                mov rcx, [rbx+base]; add rcx, rows
            """,
            base=self._base,
            rows=layout.rows_offset,
        )
        self._update("theirs", "lock ", bucket=bucket)
        asm.label("out")
        self._leave()
        if self._key:
            self._find()
        return self._finish(reader, 32 if self._key else 0)

    def _bucket(self) -> bool:
        """Emit: r8 = the number of the bucket of the value in rdx; return whether there are buckets."""
        match self._layout.aggregation:
            case Hist():
                self._log_linear()
            case Quantize():
                self._power()
            case _:
                return False
        return True

    def _log_linear(self) -> None:
        self._asm.code(
            f"""
                mov r8, rdx; mov rax, limit
                cmp r8, rax; jbe within
                mov r8, rax
            within:
                mov rax, r8; or rax, {histogram.SUB_BUCKETS}; bsr rax, rax
                sub eax, {histogram.SUB_BITS}; mov ecx, eax; shr r8, cl
                shl eax, {histogram.SUB_BITS}; lea r8, [r8+rax+1]
            """,
            limit=1 << histogram.MAX_BITS,
        )
        if self._layout.signed:
            self._asm.code("""
                test rdx, rdx; jns positive
                xor r8d, r8d
            positive:
            """)

    def _power(self) -> None:
        signed = self._layout.signed
        self._asm.code("mov r8, rdx")
        if signed:
            self._asm.code("""
                test r8, r8; jns magnitude
                neg r8
            magnitude:
            """)
        self._asm.code("""
            xor eax, eax; test r8, r8; jz nothing
            bsr rax, r8; inc eax
        nothing:
        """)
        if signed:
            self._asm.code("""
                test rdx, rdx; jns above
                neg rax
            above:
            """)
        self._asm.code(f"lea r8, [rax+{buckets.ZERO}]")

    # -- the cell

    def _update(self, label: str, lock: str, *, bucket: bool) -> None:
        """Emit: the cell of number rax, or the only one, of the row at rcx is changed, and the handler ends."""
        asm, layout = self._asm, self._layout
        cell = layout.aggregation.cell
        first = ROW_HEAD_BYTES
        if self._key:
            asm.code(f"test rax, rax; jz {label}_dropped; imul rax, rax, size; add rcx, rax", size=layout.cell_bytes)
            first -= layout.cell_bytes
        for field in cell.fields:
            offset = first + cell.offset(field)
            if field == COUNT:
                asm.code(f"{lock}inc qword [rcx+offset]", offset=offset)
            elif field == SUM:
                listing = added_exactly(label, "[rcx+offset]", "[rcx+wraps]", "rdx", signed=layout.signed, lock=lock)
                asm.code(listing, offset=offset, wraps=first + cell.offset(WRAPS))
            elif field != WRAPS:
                self._raise(f"{label}_{field}", offset, negate=field == NOT_MIN)
        if bucket:
            asm.code(f"{lock}inc qword [rcx+r8*8+offset]", offset=first + cell.buckets_offset)
        asm.code("jmp out")
        if self._key:
            asm.label(f"{label}_dropped")
            asm.code(f"{lock}inc qword [rcx+dropped]; jmp out", dropped=DROPPED)

    def _raise(self, label: str, offset: int, *, negate: bool) -> None:
        """Emit: a word becomes the larger of itself and the code of rdx; what others write there meanwhile is seen."""
        asm = self._asm
        asm.code("mov rsi, rdx")
        if self._layout.signed:
            asm.code("btc rsi, 63")
        if negate:
            asm.code("not rsi")
        asm.code(
            f"""
                mov rax, [rcx+offset]
            {label}:
                cmp rsi, rax; jbe {label}_out
                lock cmpxchg [rcx+offset], rsi; jne {label}
            {label}_out:
            """,
            offset=offset,
        )

    # -- the number of a key

    def _find(self) -> None:
        """Emit ``find(base: rdi, key: rsi)``: rax = the number of a key, made if it is new, 0 if there is no room.

        Where it is new, a number is taken (r11), the key written, and both are published by one exchange; who loses the
        race for the word looks at what is there, and gives the number back if it is the same key.
        """
        asm, layout = self._asm, self._layout
        words, size = layout.shape.words, 8 * layout.shape.words
        asm.label("find")
        asm.code("mov r8d, words; mov r9, multiplier", words=words, multiplier=MULTIPLIER)
        for index in range(words):
            asm.code("xor r8, [rsi+word]; imul r8, r9; mov rax, r8; shr rax, 32; xor r8, rax", word=8 * index)
        asm.code(
            f"""
                xor r11d, r11d; mov r10, r8; mov r9d, {PROBES}
            probe:
                mov rcx, r10; and ecx, mask
                mov rax, [rdi+rcx*8+directory]
                test rax, rax; jz empty
            taken:
                mov rdx, rax; xor rdx, r8; shr rdx, 32; jnz next
                mov eax, eax; imul rdx, rax, size
            """,
            mask=layout.slots - 1,
            directory=layout.directory_offset,
            size=size,
        )
        keys = layout.keys_offset - size
        for index in range(words):
            asm.code("mov rcx, [rsi+word]; cmp rcx, [rdi+rdx+key]; jne next", word=8 * index, key=keys + 8 * index)
        asm.code("""
            test r11, r11; jnz give_back
            ret
        next:
            inc r10; dec r9d; jnz probe
            xor eax, eax; test r11, r11; jnz give_back
            ret
        empty:
            test r11, r11; jnz publish
        """)
        asm.code(
            f"""
                cmp qword [rdi+{USED}], capacity; jae spare
                mov r11d, 1; lock xadd [rdi+{USED}], r11
                inc r11; cmp r11, capacity; jbe write
                xor r11d, r11d
            spare:
            """,
            capacity=layout.capacity,
        )
        for index in range(SPARE_WORDS):
            asm.code(f"xchg [rdi+{SPARES + 8 * index}], r11; test r11, r11; jnz write")
        asm.code("xor eax, eax; ret")
        asm.label("write")
        asm.code("imul rdx, r11, size", size=size)
        for index in range(words):
            asm.code("mov rax, [rsi+word]; mov [rdi+rdx+key], rax", word=8 * index, key=keys + 8 * index)
        asm.code(
            """
            publish:
                mov rcx, r10; and ecx, mask
                mov rdx, r8; shr rdx, 32; shl rdx, 32; or rdx, r11
                xor eax, eax; lock cmpxchg [rdi+rcx*8+directory], rdx; jne taken
                mov rax, r11; ret
            give_back:
                mov rdx, rax
            """,
            mask=layout.slots - 1,
            directory=layout.directory_offset,
        )
        for index in range(SPARE_WORDS):
            asm.code(f"xor eax, eax; lock cmpxchg [rdi+{SPARES + 8 * index}], r11; je given_back")
        asm.code("""
        given_back:
            mov rax, rdx; ret
        """)
