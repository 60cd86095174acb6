"""Updates of aggregations, and records, of simple handlers: the instructions that LLVM would make of them, by hand."""

from anyprobe.data.aggregates.aggregations import Hist
from anyprobe.data.layouts import histogram
from anyprobe.data.layouts.cells import COUNT, EXTREMES, NOT_MIN, SQUARES, SUM, WRAPS
from anyprobe.data.readers.tables import TableLayout
from anyprobe.handlers.bpf.assembly import FRAME
from anyprobe.handlers.bpf.layouts import DROPPED, HEAD_BYTES
from anyprobe.handlers.bpf.registers import KEPT, Registers, TooHard
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.storages import Ring, Table

_LOOKUP, _UPDATE, _IF_NEW = 1, 2, 1
_NOW, _RESERVE, _SUBMIT, _WAKE_NOBODY = 5, 131, 132, 1
_TRIES = 16
_TOP = 1 << 63
_HALVES = (32, 16, 8, 4, 2, 1)


class Updates(Registers):
    """Writes updates of storages."""

    def update(self, each: ir.Update) -> None:
        """Write one."""
        store = self.handler.storages[each.storage]
        match store:
            case Table(layout):
                self._add(each, layout)
            case Ring():
                self._emit(each, store)
            case _:
                raise TooHard

    # -- aggregations

    def _add(self, each: ir.Update, layout: TableLayout) -> None:
        aggregation, cell = layout.aggregation, layout.aggregation.cell
        if SQUARES in cell.fields or (cell.buckets and not isinstance(aggregation, Hist)):
            raise TooHard
        asm, value, lost, after = self.asm, self.room("value"), self.asm.fresh(), self.asm.fresh()
        if each.values:
            self.keep(each.values[0], value)
        if cell.buckets:
            self._bucket(value, signed=layout.signed)
        if each.key:
            self._find_cell(each, lost)
        else:
            asm.address(KEPT, each.storage, HEAD_BYTES)
        for field in cell.fields:
            if field in EXTREMES:
                self._raise(cell.offset(field), value, lost, low=field == NOT_MIN, signed=layout.signed)
        for field in cell.fields:
            if field == COUNT:
                asm.put(1, 1)
                asm.atomic_add(KEPT, cell.offset(field), 1)
            elif field == SUM:
                self._add_exactly(cell.offset(SUM), cell.offset(WRAPS), value, signed=layout.signed)
        if cell.buckets:
            asm.load(1, FRAME, self.room("bucket"))
            asm.go_if_number(">=", 1, cell.buckets, after)  # it never is, but the verifier does not know that
            asm.compute_number("<<", 1, 3)
            asm.compute("+", KEPT, 1)
            asm.put(1, 1)
            asm.atomic_add(KEPT, cell.buckets_offset, 1)
        asm.go(after)
        asm.here(lost)
        self.count(each.storage, DROPPED)
        asm.here(after)

    def _add_exactly(self, total: int, wraps: int, value: int, *, signed: bool) -> None:
        """Add a value on the stack to a sum, and count where that leaves 64 bits."""
        asm, exact, above = self.asm, self.asm.fresh(), self.asm.fresh()
        asm.load(1, FRAME, value)
        asm.copy(2, 1)
        asm.fetch_and_add(KEPT, total, 1)  # r1 becomes what the sum was
        asm.copy(3, 1)
        asm.compute("+", 3, 2)
        if not signed:
            asm.go_if(">=", 3, 2, exact)
            asm.put(1, 1)
        else:
            asm.compute("^", 1, 3)
            asm.copy(4, 2)
            asm.compute("^", 4, 3)
            asm.compute("&", 1, 4)
            asm.go_if_number("s>=", 1, 0, exact)
            asm.put(1, 1)
            asm.go_if_number("s>=", 2, 0, above)
            asm.compute_number("*", 1, -1)
            asm.here(above)
        asm.atomic_add(KEPT, wraps, 1)
        asm.here(exact)

    def _keys(self, key: tuple[ir.Expr | ir.Buffer, ...]) -> int:
        """Put the words of a key on the stack, and return where they are."""
        words = sum(part.size // ir.WORD if isinstance(part, ir.Buffer) else 1 for part in key)
        place = at = self.room(f"key of {words}", ir.WORD * words)
        for part in key:
            if isinstance(part, ir.Buffer):
                for offset in range(0, part.size, ir.WORD):
                    self.asm.load(1, FRAME, self.buffer(part) + offset)
                    self.asm.store(FRAME, at + offset, 1)
                at += part.size
            else:
                self.keep(part, at)
                at += ir.WORD
        return place

    def _find_cell(self, each: ir.Update, lost: str) -> None:
        """Load the address of the cell of a key, made if it is new."""
        asm, place, found = self.asm, self._keys(each.key), self.asm.fresh()
        self.point(1, 2, each.storage, place)
        asm.call(_LOOKUP)
        asm.go_if_number("!=", 0, 0, found)
        self.point(1, 2, each.storage, place)
        asm.address(3, each.storage, HEAD_BYTES)
        asm.put(4, _IF_NEW)
        asm.call(_UPDATE)
        self.point(1, 2, each.storage, place)
        asm.call(_LOOKUP)
        asm.go_if_number("==", 0, 0, lost)
        asm.here(found)
        asm.copy(KEPT, 0)

    def _raise(self, offset: int, value: int, lost: str, *, low: bool, signed: bool) -> None:
        """Make a word the larger of itself and what stands for a value; who loses the race too often drops it."""
        asm, again, done = self.asm, self.asm.fresh(), self.asm.fresh()
        asm.load(2, FRAME, value)
        if signed:
            asm.put(1, _TOP)
            asm.compute("^", 2, 1)
        if low:
            asm.compute_number("^", 2, -1)
        asm.put(3, _TRIES)
        asm.load(0, KEPT, offset)
        asm.here(again)
        asm.go_if("<=", 2, 0, done)
        asm.copy(1, 0)
        asm.compare_and_exchange(KEPT, offset, 2)
        asm.go_if("==", 0, 1, done)
        asm.compute_number("-", 3, 1)
        asm.go_if_number("!=", 3, 0, again)
        asm.go(lost)
        asm.here(done)

    def _bucket(self, value: int, *, signed: bool) -> None:
        """Put the number of a value's bucket on the stack: ``histogram.clamped_index`` and one."""
        asm, below, place = self.asm, self.asm.fresh(), self.room("bucket")
        asm.store_number(FRAME, place, 0)
        asm.load(1, FRAME, value)
        if signed:
            asm.go_if_number("s<", 1, 0, below)
        limit, inside = 1 << histogram.MAX_BITS, asm.fresh()
        asm.put(2, limit)
        asm.go_if("<=", 1, 2, inside)
        asm.copy(1, 2)
        asm.here(inside)
        asm.copy(2, 1)
        asm.compute_number("|", 2, histogram.SUB_BUCKETS)
        asm.put(3, 0)
        for half in _HALVES:  # the position of the highest bit
            lower = asm.fresh()
            asm.copy(4, 2)
            asm.compute_number(">>", 4, half)
            asm.go_if_number("==", 4, 0, lower)
            asm.copy(2, 4)
            asm.compute_number("+", 3, half)
            asm.here(lower)
        asm.compute_number("-", 3, histogram.SUB_BITS)
        asm.compute(">>", 1, 3)
        asm.compute_number("<<", 3, histogram.SUB_BITS)
        asm.compute("+", 1, 3)
        asm.compute_number("+", 1, 1)
        asm.store(FRAME, place, 1)
        asm.here(below)

    # -- records

    def _emit(self, each: ir.Update, store: Ring) -> None:
        """Write a record into the kernel's ring buffer."""
        asm, record, full, after = self.asm, store.layout.record, self.asm.fresh(), self.asm.fresh()
        place = self._keys(each.key)
        asm.address(1, each.storage, table=True)
        asm.put(2, record.bytes)
        asm.put(3, 0)
        asm.call(_RESERVE)
        asm.go_if_number("==", 0, 0, full)
        asm.copy(KEPT, 0)
        asm.call(_NOW)
        asm.store(KEPT, 0, 0)
        for field, offset, part in zip(record.fields, record.offsets, each.key, strict=False):
            if isinstance(part, ir.Buffer):
                for at in range(0, part.size, ir.WORD):
                    asm.load(1, FRAME, place + at)
                    asm.store(KEPT, offset + at, 1)
                place += part.size
            else:
                asm.load(1, FRAME, place)
                asm.store(KEPT, offset, 1, field.bytes)
                place += ir.WORD
        asm.copy(1, KEPT)
        asm.put(2, _WAKE_NOBODY)
        asm.call(_SUBMIT)
        asm.go(after)
        asm.here(full)
        self.count(each.storage, DROPPED)
        asm.here(after)
