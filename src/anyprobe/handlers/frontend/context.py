"""``ctx``: what a handler can ask about its hit, and, with ``unsafe=True``, change."""

from dataclasses import dataclass, field
from typing import NamedTuple

from anyprobe.core.code import SKIP, InputKind
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.frontend.buffers import new_buffer
from anyprobe.handlers.frontend.emitter import Emitter
from anyprobe.handlers.frontend.members import received
from anyprobe.handlers.frontend.operators import Fail, convert
from anyprobe.handlers.frontend.parameters import returned, returned_in_parts
from anyprobe.handlers.frontend.values import Context, Kind, Maybe, Packed, Scalar, Text, Value
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import (
    AnyType,
    FloatType,
    Layout,
    PointerType,
    Type,
    boolean,
    func,
    gotype,
    i32,
    i64,
    ptr,
    stack,
    u32,
    u64,
)
from anyprobe.handlers.types.calling_convention import INTEGER_REGISTERS, KnownPrototype, Located, PassedAsGo
from anyprobe.handlers.types.go_convention import go_places
from anyprobe.handlers.types.layouts import StructType
from anyprobe.handlers.types.storages import Stacks, Storages
from anyprobe.handlers.x86 import status_flags
from anyprobe.isa.registers import NUMBERS

ATTRIBUTES: dict[str, Type] = {
    "retval": i64,
    "ip": ptr,
    "func": func,
    "caller": ptr,
    "tid": i32,
    "pid": i32,
    "cpu": i32,
    "now": u64,
    "errno": i32,
}
"""Attributes and their types."""
KERNEL_ATTRIBUTES: dict[str, Type] = {"uid": u32, "gid": u32, "cgroup": u64}
"""What the kernel tells besides, of handlers that run in it."""
UNCHANGED = "handlers in the kernel change nothing of what it computes"
_OVERRIDING = frozenset({"skip", "override"})
CHANGEABLE = ("retval", "ip", "errno")
"""Attributes that a handler may change in an unsafe session."""
SPECULATING = ("speculate", "commit", "discard")
"""Methods that decide about records, in the order of ``data.readers.speculations.Mark``."""
CPU_NOW = "cpu_now"
"""For how long the thread has been on processors."""
COMM_BYTES = 16
"""Bytes of a thread's name, its NUL included."""
CAPTURE = "capture"
"""The operation that takes a stack: how deep, whether at a function's entry, pc, stack and frame pointer."""
INSTANCE_WORDS, FEW_WORDS = 24, 8
"""Words of data that a call can have, and where they are few: of Go functions, and in splices of the kernel."""
STORED_AT = ir.WORD * FEW_WORDS
"""Where, after the first of them, a word has a bit for each field that was stored; zero where a call begins."""


RESULT_PLACE = "return"
"""The field that holds where the result will be; no attribute can have this name."""


class TextKind(NamedTuple):
    """A text in ``ctx.data``: its length, and so many bytes."""

    size: int
    terminated: bool

    def __str__(self) -> str:
        """Return it in words."""
        return f"{'text' if self.terminated else 'bytes'} of {self.size}"


@dataclass
class InstanceLayout:
    """The names of ``ctx.data``: shared by the handlers of one call, so that what entry stores, return finds."""

    fields: dict[str, Kind | StructType | TextKind] = field(default_factory=dict)
    """Numbers and pointers, texts, and structs by value: strings and slices of other languages."""
    keeps_result: bool = False
    """Whether the entry keeps where in its caller's memory the function's result will be."""

    room: int = INSTANCE_WORDS
    """How many words there are."""

    def offset(self, name: str, index: int = 0) -> int:
        """Return the byte offset of a word of a field."""
        names = list(self.fields)
        word = index + sum(_words(self.fields[each]) for each in names[: names.index(name)])
        return ir.WORD * (word + (word >= FEW_WORDS))

    def number(self, name: str) -> int:
        """Return the number of a field."""
        return list(self.fields).index(name)

    @property
    def words(self) -> int:
        """How many words all fields take."""
        return sum(map(_words, self.fields.values()))


@dataclass
class ContextAccess:
    """Compiles uses of ``ctx``."""

    instance: InstanceLayout
    retval: AnyType | None = i64
    """The type of ``ctx.retval``; ``None`` where there is none."""
    unsafe: bool = False
    entry: bool = False
    """Whether the handler runs where a function is entered, so that the function can be skipped."""
    tail: bool = False
    """Whether the handler runs where a function ends in a jump to another one, so that there is no result yet."""
    prototype: KnownPrototype | None = None
    """What is known of the function; its result's type counts where ``retval`` is the general one."""
    kernel: frozenset[str] | None = None
    """The attributes that there are where the handler runs in the kernel; ``None``: it runs in a process."""
    _buffers: dict[str, ir.Buffer] = field(default_factory=dict)
    """Where texts of ``ctx.data`` are, by their names."""

    def read(self, emit: Emitter, part: str, name: str, fail: Fail) -> Value:
        """Compile an attribute of ``ctx``, ``ctx.regs`` or ``ctx.data``."""
        if part == "data":
            return self._load(emit, name, fail)
        if part == "regs" and name == status_flags.NAME:
            return Scalar(status_flags.read(ir.Word(emit.word(InputKind.REGISTER, status_flags.KEPT))))
        if part == "regs" and name != "rip":
            return Scalar(ir.Word(emit.word(InputKind.REGISTER, _register(name, fail))))
        if part == "" and (
            name in {"regs", "data", "skip", "ustack", *SPECULATING} or (name == "kstack" and self.kernel is not None)
        ):
            self._see_kernel(name, fail)
            return Context(name)
        name = "ip" if part == "regs" else name
        self._see_kernel(name, fail)
        if name == "comm":
            return _comm(emit)
        if name == CPU_NOW and self.kernel is None:
            return _cpu_now(emit)
        kind = ATTRIBUTES.get(name) if self.kernel is None else (ATTRIBUTES | KERNEL_ATTRIBUTES).get(name)
        if kind is None:
            others = ("comm", CPU_NOW, "ustack", "regs", "data")
            raise fail(f"ctx has no {name}", "one of " + ", ".join((*ATTRIBUTES, *others)))
        if name == "retval":
            if self.retval is None:
                raise fail("there is no return value here", "a handler of a return: session.ret, or .ret of a call")
            return self._returned(emit, fail)
        word: ir.Expr = ir.Word(emit.word(InputKind.CONTEXT, name))
        return Scalar(received(word, kind))

    def write(self, emit: Emitter, part: str, name: str, value: ir.Expr, fail: Fail) -> None:
        """Compile an assignment to an attribute."""
        if part == "data":
            self._store(emit, name, value, fail)
            return
        if part not in {"", "regs"} or (part == "" and name not in CHANGEABLE):
            instead = "ctx.data, or with unsafe=True ctx.regs and " + ", ".join(f"ctx.{each}" for each in CHANGEABLE)
            raise fail(f"ctx.{name} cannot be changed", instead)
        self._demand_unsafe(fail)
        if name == "retval" and self.tail:
            emit.demand(ir.FALSE, "ctx.retval")
            return
        if isinstance(value.type, FloatType):
            raise fail(f"a {value.type} in a register for whole numbers", "u64(…)")
        if name == "retval" and self.retval is None:
            raise fail("there is no return value here", "ctx.skip(value), which returns it in the function's stead")
        if part == "regs" and name == status_flags.NAME:
            word = emit.word(InputKind.REGISTER, status_flags.KEPT, written=True)
            value = status_flags.written(convert(value, u64))
        elif part == "regs" or name == "ip":
            register = "rip" if name in {"ip", "rip"} else _register(name, fail)
            word = emit.word(InputKind.REGISTER, register, written=True)
        else:
            word = emit.word(InputKind.CONTEXT, name, written=True)
        emit.add(ir.SetWord(word, convert(value, u64)))

    def skip(self, emit: Emitter, value: ir.Expr | None, errno: ir.Expr | None, fail: Fail) -> None:
        """Compile ``ctx.skip``: the function returns a value without having run, and sets ``errno``."""
        self._demand_unsafe(fail)
        if not self.entry:
            raise fail("a function can be skipped only where it is entered", "session.entry, or session.call")
        for number, name in ((value, "retval"), (errno, "errno")):
            if number is not None and isinstance(number.type, FloatType):
                raise fail(f"a {number.type} in a register for whole numbers", "i64(…)")
            if number is not None:
                word = emit.word(InputKind.CONTEXT, name, written=True)
                emit.add(ir.SetWord(word, convert(number, u64)))
        stub = ir.Word(emit.word(InputKind.ROUTINE, SKIP))
        emit.add(ir.SetWord(emit.word(InputKind.REGISTER, "rip", written=True), stub))

    def _see_kernel(self, name: str, fail: Fail) -> None:
        """Refuse what there is not in the kernel."""
        if self.kernel is not None and name in _OVERRIDING:
            raise fail(f"{UNCHANGED}, and no function returns early (bpf_override_return)", "")
        if self.kernel is not None and name not in self.kernel:
            raise fail(f"there is no ctx.{name} here in the kernel", "one of " + ", ".join(sorted(self.kernel)))

    def _returned(self, emit: Emitter, fail: Fail) -> Value:
        """Compile ``ctx.retval``: missing where the function ends in a jump to another one."""
        found = self._given_back(emit, fail)
        if isinstance(found, Scalar):
            return Maybe(ir.FALSE if self.tail else ir.TRUE, found)
        if isinstance(found, Maybe):
            return Maybe(ir.FALSE, found.value) if self.tail else found
        if self.tail:
            emit.demand(ir.FALSE, "ctx.retval")
        return found

    def _given_back(self, emit: Emitter, fail: Fail) -> Scalar | Packed | Maybe:
        """Return the result from where the function's convention has it."""
        kind, located = self._result(), None
        try:
            located = self.prototype().located if self.prototype is not None else None
        except PassedAsGo:
            located = Located("Go", (), None)
        except UnsupportedTarget:
            return returned(emit, kind, fail)
        if located is not None and located.language == "Go":
            known = located.result if self.retval == i64 and located.result else None
            try:
                return returned_in_parts(emit, kind, known or go_places((), (kind,))[1][0], fail)
            except UnsupportedTarget as error:
                raise fail(str(error), "ctx.regs") from None
        if located is not None and self.retval == i64 and located.result is not None and kind != i64:
            return returned_in_parts(emit, kind, located.result, fail)
        if located is not None and self.retval == i64 and located.result is None and isinstance(kind, Layout):
            return self._result_in_memory(emit, kind, fail)
        return returned(emit, kind, fail)

    def _result_in_memory(self, emit: Emitter, kind: Layout, fail: Fail) -> Maybe:
        """Return the address of a result in memory of the caller, which the entry's handler has kept."""
        if RESULT_PLACE not in self.instance.fields:
            what = f"the function returns a {kind} in its caller's memory, and only its entry says where"
            raise fail(what, "session.call, whose handler of the return knows")
        address = self._load(emit, RESULT_PLACE, fail)
        assert isinstance(address, Maybe)
        return Maybe(address.present, Scalar(received(address.value.expr, PointerType(kind))))

    def keep_result_place(self, emit: Emitter, fail: Fail) -> None:
        """Keep where the result will be, for the handler of the return."""
        if self.entry and self.instance.keeps_result:
            word = ir.Word(emit.word(InputKind.REGISTER, INTEGER_REGISTERS[0]))
            self._store(emit, RESULT_PLACE, convert(word, u64), fail)

    def _result(self) -> AnyType:
        """Return the type of the function's result."""
        assert self.retval is not None
        if self.retval != i64 or self.prototype is None:
            return self.retval
        try:
            return self.prototype().result or i64
        except UnsupportedTarget:
            return i64

    def unknown_result(self) -> str:
        """Return why nothing is known of the type of the function's result; empty where something is, or was said."""
        if self.retval != i64 or self.prototype is None:
            return ""
        try:
            self.prototype()
        except UnsupportedTarget as error:
            return f"the type of the function's result is not known: {error}"
        return ""

    def stack(
        self, emit: Emitter, storages: Storages, depth: int, *, of_kernel: bool = False, python: bool = False
    ) -> Value:
        """Compile ``ctx.ustack`` and ``ctx.kstack``: the number of the stack, of at most ``depth`` addresses."""
        if self.kernel is not None:
            kept = storages.setdefault((Stacks, of_kernel, depth), Stacks(of_kernel, depth))
            there, found = emit.temporary(boolean), emit.temporary(u64)
            emit.add(ir.Update(emit.storage(kept), CAPTURE, (), (), there, found))
            return Scalar(convert(found, stack))
        storage = storages.setdefault(Stacks, Stacks())
        ip, rsp, rbp = (
            ir.Word(emit.word(kind, name))
            for kind, name in (
                (InputKind.CONTEXT, "ip"),
                (InputKind.REGISTER, "rsp"),
                (InputKind.REGISTER, "rbp"),
            )
        )
        present, target = emit.temporary(boolean), emit.temporary(u64)
        how = ir.Const(depth, u64), ir.Const(int(self.entry), u64), ir.Const(int(python), u64)
        # with the thread's id comes all that has to be so where something is read by the thread pointer
        thread = (ir.Word(emit.word(InputKind.CONTEXT, "tid")),) if python else ()
        emit.add(ir.Update(emit.storage(storage), CAPTURE, (*how, ip, rsp, rbp, *thread), (), present, target))
        return Scalar(convert(target, stack))

    def _demand_unsafe(self, fail: Fail) -> None:
        if self.kernel is not None:
            raise fail(UNCHANGED, "")
        if not self.unsafe:
            raise fail("this changes what the program computes", "unsafe=True, where the session is opened")

    def _load(self, emit: Emitter, name: str, fail: Fail) -> Value:
        kind = self.instance.fields.get(name)
        if kind is None:
            known = ", ".join(self.instance.fields) or "none yet"
            raise fail(f"nothing has been stored in ctx.data.{name} (fields: {known})", "")
        loads = []
        for index in range(_words(kind)):
            present, target = emit.temporary(boolean), emit.temporary(u64)
            place = self.instance.offset(name, index)
            emit.add(ir.LoadInstance(present, target, emit.word(InputKind.INSTANCE), place))
            loads.append((present, target))
        present = self._is_stored(emit, name)
        _, target = loads[0]
        if isinstance(kind, Kind):
            return Maybe(present, Scalar(received(target, kind.type)))
        if isinstance(kind, TextKind):
            return self._load_text(emit, name, kind, present, [found for _, found in loads], fail)
        emit.demand(present, f"ctx.data.{name}")
        return Packed(kind, tuple(target for _, target in loads))

    def keep(self, emit: Emitter, name: str, value: Packed, fail: Fail) -> None:
        """Compile ``ctx.data.name = value`` of a struct by value, as texts and slices are."""
        kind = value.kind
        if not isinstance(kind, StructType) or value.offset or not value.words:
            raise fail("ctx.data holds whole numbers, pointers and texts", "its members")
        self._declare(name, kind, fail)
        for index, word in enumerate(value.words):
            place = self.instance.offset(name, index)
            emit.add(ir.StoreInstance(emit.word(InputKind.INSTANCE), place, convert(word, u64)))
        self._note_stored(emit, name)

    def keep_text(self, emit: Emitter, name: str, text: Text, fail: Fail) -> None:
        """Compile ``ctx.data.name = text``: its bytes, as they are now. What is missing is not stored."""
        self._declare(name, TextKind(text.buffer.size, text.terminated), fail)
        with emit.when(text.present):
            words: list[ir.Expr] = [convert(text.length, u64)]
            for number in range(text.buffer.size // ir.WORD):
                word = emit.temporary(u64)
                emit.add(ir.BufferWord(word, text.buffer, number))
                words.append(word)
            for index, each in enumerate(words):
                emit.add(ir.StoreInstance(emit.word(InputKind.INSTANCE), self.instance.offset(name, index), each))
            self._note_stored(emit, name)

    def _load_text(
        self, emit: Emitter, name: str, kind: TextKind, present: ir.Local, words: list[ir.Local], fail: Fail
    ) -> Text:
        """Return a text that was kept."""
        length = emit.length()
        buffer = self._buffers.get(name)
        if buffer is None:
            buffer = self._buffers[name] = new_buffer(emit, fail, kind.size)  # each use reads the same again
        emit.add(ir.Assign(length, ir.Const(0, i64)))
        with emit.when(present):
            emit.add(ir.Assign(length, convert(words[0], i64)))
            emit.add(ir.FillBuffer(buffer, tuple(words[1:])))
        emit.flow.known[length.name] = (0, kind.size)
        return Text(present, buffer, length, kind.terminated)

    def _declare(self, name: str, kind: Kind | StructType | TextKind, fail: Fail) -> None:
        """Have room for a field of the call's data, of one type wherever it is stored."""
        known = self.instance.fields.setdefault(name, kind)
        if known != kind:
            instead = f"{known}(…)" if isinstance(known, Kind) else ""
            raise fail(f"ctx.data.{name} is {known}, this is {kind}", instead)
        if self.instance.words > self.instance.room:
            few = " of Go, and in splices of the kernel" if self.instance.room == FEW_WORDS else ""
            what = f"the data of a call{few} has at most {self.instance.room} words; a text takes its bytes and a word"
            raise fail(what, "a shorter text: cstr(p, 32)")

    def _store(self, emit: Emitter, name: str, value: ir.Expr, fail: Fail) -> None:
        keeps_type = value.type in {u64, func, gotype, stack} or isinstance(value.type, PointerType | FloatType)
        self._declare(name, Kind(value.type if keeps_type else i64), fail)
        word = ir.Bits(value, u64) if isinstance(value.type, FloatType) else convert(value, u64)
        emit.add(ir.StoreInstance(emit.word(InputKind.INSTANCE), self.instance.offset(name), word))
        self._note_stored(emit, name)

    def _is_stored(self, emit: Emitter, name: str) -> ir.Local:
        """Return whether a call has data, and a field of it was stored: its entry's handler may have ended before."""
        there, stored = self._stored(emit)
        found = emit.temporary(boolean)
        emit.add(ir.Assign(found, ir.FALSE))
        with emit.when(there):
            bit = ir.Const(1 << self.instance.number(name), u64)
            emit.add(ir.Assign(found, ir.Compare("!=", ir.Binary("&", stored, bit), ir.Const(0, u64))))
        return found

    def _note_stored(self, emit: Emitter, name: str) -> None:
        there, stored = self._stored(emit)
        bit = ir.Const(1 << self.instance.number(name), u64)
        with emit.when(there):
            word = emit.word(InputKind.INSTANCE)
            emit.add(ir.StoreInstance(word, STORED_AT, ir.Binary("|", stored, bit)))

    def _stored(self, emit: Emitter) -> tuple[ir.Local, ir.Local]:
        """Return whether the call has data, and the word that says which fields of it were stored."""
        there, stored = emit.temporary(boolean), emit.temporary(u64)
        emit.add(ir.LoadInstance(there, stored, emit.word(InputKind.INSTANCE), STORED_AT))
        return there, stored


def _words(kind: Kind | StructType | TextKind) -> int:
    """Return how many words of a call's data a field takes."""
    if isinstance(kind, TextKind):
        return 1 + kind.size // ir.WORD
    return max(1, -(-kind.size // ir.WORD)) if isinstance(kind, StructType) else 1


def _comm(emit: Emitter) -> Value:
    """Compile ``ctx.comm``, which is asked for at each use: the thread may have changed it."""
    buffer, present, length = emit.buffer(COMM_BYTES), emit.temporary(boolean), emit.length()
    emit.add(ir.ReadComm(present, length, buffer))
    emit.flow.known[length.name] = (0, COMM_BYTES)
    return Text(present, buffer, length, terminated=True)


def _cpu_now(emit: Emitter) -> Value:
    """Compile ``ctx.cpu_now``, which is asked for at each use; missing where no system calls may be made."""
    present, found = emit.temporary(boolean), emit.temporary(u64)
    emit.add(ir.ReadCpu(present, found))
    return Maybe(present, Scalar(found))


def _register(name: str, fail: Fail) -> str:
    if name not in NUMBERS:
        raise fail(f"there is no register {name}", "one of " + ", ".join(NUMBERS))
    return name
