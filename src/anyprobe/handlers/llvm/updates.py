"""Code that updates the structures of ``data``, built into a handler that is being compiled for x86-64.

All builders take the ``IRBuilder`` of the handler, the layout of the structure (a constant of the compilation), and
64-bit integer values:

    add(builder, table: TableLayout, base, thread, value=None, key=()) -> None
    emit(builder, layout: RingLayout, base, thread, values, now=None) -> None
    map_set(builder, layout: MapLayout, base, key, value) -> None
    map_get(builder, layout, base, key) -> (bit: whether it is there, value)
    map_delete(builder, layout, base, key) -> (bit: whether it was there, value)
    map_increase(builder, layout, base, key, by) -> (bit: whether there was room, sum)

``base`` is the address of the structure's region in the target; zeroed memory is an empty structure. ``thread`` is a
number that no other living thread of the process has, counted from 1, or 0 for a thread that has none: that one uses
what is shared, by atomic operations. (With the banks of ``data.layouts.layout``:
``(block - blocks_offset - region) / stride + 1``.) ``key`` are the words of the key, as ``data.layouts.keys`` describes
them. ``value`` is sign- or zero-extended as ``table.signed`` says. ``values`` of a record are integers of 64 bits
(which are cut) or of the field's own width, floats, and lists of words for texts; ``now`` is its time, ``rdtsc`` if not
given.

The module that is built has to be parsed with an assembler (``initialize_native_asmparser``), optimised with inlining,
and compiled with ``cx16``. Everything is safe under any number of threads, and under signal handlers that interrupt an
update to do others of the same structure, whether they return into it or not.
"""

from anyprobe.handlers.llvm.maps import map_delete, map_get, map_increase, map_set
from anyprobe.handlers.llvm.rings import emit
from anyprobe.handlers.llvm.tables import add

__all__ = ["add", "emit", "map_delete", "map_get", "map_increase", "map_set"]
