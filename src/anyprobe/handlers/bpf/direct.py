"""Simple handlers as BPF without LLVM: comparisons, whole numbers, reads, updates of aggregations, records.

The code is what it says, statement by statement, with all variables on the stack; it is there in no time, which in an
emulated machine is the difference between a moment and a minute. What is not simple is for LLVM.
"""

from anyprobe.core.code import MISSES, BpfProgram, Miss
from anyprobe.handlers.bpf.assembly import FRAME
from anyprobe.handlers.bpf.direct_updates import Updates
from anyprobe.handlers.bpf.layouts import CALLS_BYTES, DROPPED, MISSES_REFERENCE, OPEN, Passed
from anyprobe.handlers.bpf.registers import COMM_BYTES, CONTEXT, READ_KERNEL, TooHard
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import walk
from anyprobe.handlers.passes import bounds
from anyprobe.handlers.types.annotations import IntegerType
from anyprobe.handlers.types.storages import CallData

_LONGEST = 1500
"""Instructions: more is worth optimising."""
_COMM, _READ_USER, _READ_USER_TEXT, _READ_KERNEL_TEXT = 16, 112, 114, 115
_LOOKUP, _UPDATE, _DELETE, _THREAD = 1, 2, 3, 14


def direct_program(
    handler: ir.Function, passed: Passed | None = None, *, result_word: bool = False
) -> BpfProgram | None:
    """Return the program of a simple handler, None for any other; ``result_word`` as for ``compile_bpf``."""
    try:
        return _Writer(handler, passed, result_word=result_word).run()
    except TooHard:
        return None


def _read_locals(body: ir.Body) -> list[ir.Local]:
    """Return the variables that are read, which have to be zero at first."""
    found = {part.name: part for part in walk.expressions(body) if isinstance(part, ir.Local)}
    return [found[name] for name in sorted(found)]


def direct_places(handler: ir.Function, passed: Passed) -> tuple[tuple[int, ir.Mark], ...] | None:
    """Return where the code of each marked place begins in the program of a simple handler, None for any other."""
    writer = _Writer(handler, passed, result_word=False)
    try:
        writer.run()
    except TooHard:
        return None
    return writer.asm.places


class _Writer(Updates):
    """Writes the program of one handler."""

    def __init__(self, handler: ir.Function, passed: Passed | None, *, result_word: bool) -> None:
        super().__init__(handler, passed)
        self._result_word = result_word
        self._after: dict[str, str] = {}
        self._end = self.asm.fresh()
        calls = [index for index, each in enumerate(handler.storages) if isinstance(each, CallData)]
        self._calls = calls[0] if calls else None

    def run(self) -> BpfProgram:
        asm, handler = self.asm, self.handler
        asm.copy(CONTEXT, 1)
        self._begin_call()
        for local in _read_locals(handler.body):
            asm.store_number(FRAME, self.place_of(local), 0)
        if self._result_word and handler.result is not None:
            self.room("result")
            asm.store_number(FRAME, self.room("result"), 0)
        self._body(handler.body)
        asm.here(self._end)
        self._end_call()
        if self._result_word and handler.result is not None:
            asm.load(1, FRAME, self.room("result"))
            asm.store(CONTEXT, ir.WORD * len(handler.inputs), 1)
        asm.put(0, 0 if self.passed is None else self.passed.result)
        asm.leave()
        if len(asm) > _LONGEST:
            raise TooHard
        code, references = asm.finish()
        return BpfProgram(code, handler.inputs, references, bounds.steps(handler))

    # -- the data of calls

    def _begin_call(self) -> None:
        """Find the call's data; the handler does not run until both ends are in place."""
        if self._calls is None or self.passed is None:
            return
        asm, passed, key = self.asm, self.passed, self.room("call", 16)
        asm.address(1, self._calls)
        asm.load(1, 1, OPEN)
        closed = asm.fresh()
        asm.go_if_number("!=", 1, 0, closed)
        asm.put(0, passed.result)
        asm.leave()
        asm.here(closed)
        asm.call(_THREAD)
        asm.store(FRAME, key, 0)
        if passed.frame is None:
            asm.copy(1, CONTEXT)
            self.plain(1)
        else:
            asm.load(1, CONTEXT, ir.WORD * passed.frame)
            if not passed.enters:
                asm.compute_number("-", 1, ir.WORD)
        asm.store(FRAME, key + ir.WORD, 1)
        if passed.enters:
            self.point(1, 2, self._calls, key)
            asm.address(3, self._calls, CALLS_BYTES)  # zeros
            asm.put(4, 0)
            asm.call(_UPDATE)
        self.point(1, 2, self._calls, key)
        asm.call(_LOOKUP)
        asm.store(FRAME, self.room("data"), 0)
        if passed.enters:
            there = asm.fresh()
            asm.go_if_number("!=", 0, 0, there)
            self.count(self._calls, DROPPED)
            asm.here(there)

    def _end_call(self) -> None:
        if self._calls is not None and self.passed is not None and not self.passed.enters:
            self.point(1, 2, self._calls, self.room("call", 16))
            self.asm.call(_DELETE)

    # -- statements

    def _body(self, statements: ir.Body) -> None:
        for each in statements:
            self._statement(each)

    def _statement(self, each: ir.Stmt) -> None:
        asm = self.asm
        match each:
            case ir.Assign(local, value):
                self.keep(value, self.place_of(local))
            case ir.If(condition, then, orelse):
                no, after = asm.fresh(), asm.fresh()
                self.unless(condition, no)
                self._body(then)
                if orelse:
                    asm.go(after)
                asm.here(no)
                self._body(orelse)
                asm.here(after)
            case ir.Block(label, inner):
                self._after[label] = asm.fresh()
                self._body(inner)
                asm.here(self._after[label])
            case ir.Leave(label):
                asm.go(self._after[label])
            case ir.Return(value):
                if self._result_word:
                    self.keep(value, self.room("result"))
                asm.go(self._end)
            case ir.Mark():
                asm.mark(each)
            case ir.CountMiss(miss):
                self._miss(miss)
            case ir.Read():
                self._read(each)
            case ir.ReadBytes():
                self._read_bytes(each)
            case ir.ReadComm():
                self._read_comm(each)
            case ir.BufferEquals():
                self._equals(each)
            case ir.BufferWord(target, buffer, number):
                asm.load(1, FRAME, self.buffer(buffer) + ir.WORD * number)
                asm.store(FRAME, self.place_of(target), 1)
            case ir.LoadInstance() | ir.StoreInstance():
                self._instance(each)
            case ir.Update():
                self.update(each)
            case _:
                raise TooHard

    def _miss(self, miss: Miss) -> None:
        self.count(MISSES_REFERENCE, ir.WORD * MISSES.index(miss))

    def _read(self, each: ir.Read) -> None:
        """Read by ``bpf_probe_read_user`` or ``bpf_probe_read_kernel``; what cannot be read is zero."""
        asm, kind, place = self.asm, each.target.type, self.place_of(each.target)
        failed, after = asm.fresh(), asm.fresh()
        self.number(each.address, 3)
        asm.store_number(FRAME, self.place_of(each.present), 0)
        asm.store_number(FRAME, place, 0)
        asm.put(2, kind.size)
        self._ask_for_memory(place, _READ_USER, READ_KERNEL)
        asm.go_if_number("!=", 0, 0, failed)
        asm.store_number(FRAME, self.place_of(each.present), 1)
        if isinstance(kind, IntegerType) and kind.signed and kind.bits < 64:
            asm.load(1, FRAME, place)
            asm.cut(1, kind.bits, signed=True)
            asm.store(FRAME, place, 1)
        asm.go(after)
        asm.here(failed)
        asm.store_number(FRAME, place, 0)
        self._miss(Miss.FAULT)
        asm.here(after)

    def _ask_for_memory(self, place: int, user: int, kernel: int) -> None:
        """Read to the stack by one of two functions, by the half that the address in r3 is in; r2 is the size."""
        asm = self.asm
        asm.copy(1, FRAME)
        asm.compute_number("+", 1, place)
        if self.passed is None or not self.passed.kernel_memory:
            asm.call(user)
            return
        in_kernel, done = asm.fresh(), asm.fresh()
        asm.go_if_number("s<", 3, 0, in_kernel)
        asm.call(user)
        asm.go(done)
        asm.here(in_kernel)
        asm.call(kernel)
        asm.here(done)

    def _blank(self, buffer: ir.Buffer) -> int:
        """Fill a buffer with zeros, and return where it is."""
        place = self.buffer(buffer)
        for at in range(0, buffer.size + ir.WORD, ir.WORD):
            self.asm.store_number(FRAME, place + at, 0)
        return place

    def _read_bytes(self, each: ir.ReadBytes) -> None:
        """Read bytes, or a text up to its NUL, of a size that is known."""
        asm = self.asm
        if not isinstance(each.size, ir.Const):
            raise TooHard
        self.number(each.address, 3)
        asm.store(FRAME, self.room("address"), 3)
        place, size = self._blank(each.buffer), int(each.size.value)
        asm.load(3, FRAME, self.room("address"))
        there, after = asm.fresh(), asm.fresh()
        asm.put(2, size + each.text)
        if each.text:
            self._ask_for_memory(place, _READ_USER_TEXT, _READ_KERNEL_TEXT)
            asm.compute_number("-", 0, 1)
            asm.go_if_number("s>=", 0, 0, there)
        else:
            self._ask_for_memory(place, _READ_USER, READ_KERNEL)
            asm.go_if_number("==", 0, 0, there)
        asm.store_number(FRAME, self.place_of(each.present), 0)
        asm.store_number(FRAME, self.place_of(each.length), 0)
        self._miss(Miss.FAULT)
        asm.go(after)
        asm.here(there)
        if not each.text:
            asm.put(0, size)
        asm.store(FRAME, self.place_of(each.length), 0)
        asm.store_number(FRAME, self.place_of(each.present), 1)
        asm.here(after)

    def _equals(self, each: ir.BufferEquals) -> None:
        """Compare the beginning of a buffer with words."""
        asm, place, after = self.asm, self.buffer(each.buffer), self.asm.fresh()
        asm.store_number(FRAME, self.place_of(each.target), 0)
        for index, word in enumerate(each.words):
            asm.load(1, FRAME, place + ir.WORD * index)
            asm.put(2, word)
            asm.go_if("!=", 1, 2, after)
        asm.store_number(FRAME, self.place_of(each.target), 1)
        asm.here(after)

    def _read_comm(self, each: ir.ReadComm) -> None:
        asm, place = self.asm, self._blank(each.buffer)
        asm.copy(1, FRAME)
        asm.compute_number("+", 1, place)
        asm.put(2, COMM_BYTES)
        asm.call(_COMM)
        there = asm.fresh()
        asm.store_number(FRAME, self.place_of(each.present), 1)
        asm.go_if_number("==", 0, 0, there)
        asm.store_number(FRAME, self.place_of(each.present), 0)
        self._miss(Miss.FAULT)
        asm.here(there)
        if any(each.length == part for part in walk.expressions(self.handler.body)):
            asm.put(2, COMM_BYTES)
            for at in reversed(range(COMM_BYTES)):
                further = asm.fresh()
                asm.load(1, FRAME, place + at, 1)
                asm.go_if_number("!=", 1, 0, further)
                asm.put(2, at)
                asm.here(further)
            asm.store(FRAME, self.place_of(each.length), 2)

    def _instance(self, each: ir.LoadInstance | ir.StoreInstance) -> None:
        if self._calls is None or self.passed is None:
            raise TooHard
        asm, none = self.asm, self.asm.fresh()
        if isinstance(each, ir.StoreInstance):
            self.number(each.value, 2)
            asm.load(1, FRAME, self.room("data"))
            asm.go_if_number("==", 1, 0, none)
            asm.store(1, each.offset, 2)
            asm.here(none)
            return
        asm.store_number(FRAME, self.place_of(each.present), 0)
        asm.load(1, FRAME, self.room("data"))
        asm.go_if_number("==", 1, 0, none)
        asm.load(2, 1, each.offset)
        asm.store(FRAME, self.place_of(each.target), 2)
        asm.store_number(FRAME, self.place_of(each.present), 1)
        asm.here(none)
