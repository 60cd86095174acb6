"""The data of calls in the kernel, in a hash map by thread and frame: so each of a recursion has its own.

What a call leaves that never returns is used again by the next with the same frame.
"""

from llvmlite import ir

from anyprobe.handlers.bpf.helper_functions import POINTER, call
from anyprobe.handlers.bpf.layouts import CALL_KEY_BYTES, CALLS_BYTES, DROPPED
from anyprobe.handlers.llvm.words import I64, Local, Value, constant

_LOOKUP, _UPDATE, _DELETE, _THREAD = 1, 2, 3, 14


class Instance:
    """The data of the call that a program is in."""

    def __init__(self, builder: ir.IRBuilder, region: Value, table: Value, frame: Value, *, enters: bool) -> None:
        """Find it, made anew where the call begins; one that finds no room is counted."""
        self._builder, self._table = builder, table
        with builder.goto_entry_block():
            key = builder.alloca(ir.ArrayType(I64, CALL_KEY_BYTES // 8))
        for index, word in enumerate((call(builder, _THREAD, []), frame)):
            builder.store(word, builder.gep(key, [constant(0), constant(index)]))
        self._key = builder.bitcast(key, POINTER)
        if enters:
            blank = builder.gep(region, [constant(0), constant(CALLS_BYTES // 8)])
            call(builder, _UPDATE, [table, self._key, builder.bitcast(blank, POINTER), constant(0)])
        self._address = Local(builder, call(builder, _LOOKUP, [table, self._key]))
        if enters:
            with builder.if_then(builder.icmp_unsigned("==", self._address.get(), constant(0)), likely=False):
                place = builder.gep(region, [constant(0), constant(DROPPED)])
                builder.atomic_rmw("add", place, constant(1), "monotonic")

    def address(self) -> Value:
        """Return the address of the data, 0 if there is none."""
        return self._address.get()

    def end(self) -> None:
        """Give the data back."""
        call(self._builder, _DELETE, [self._table, self._key])
