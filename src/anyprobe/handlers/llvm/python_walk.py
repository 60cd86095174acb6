"""Going up Python's frames in LLVM's language; ``data.layouts.unwinding`` says where they are, if that is known.

A thread has its state where the C library keeps what is the thread's own. All else is read by the routines that never
fault, and at most as many frames as there is room for: what is wrong there ends the walk.
"""

from llvmlite import ir

from anyprobe.data.layouts import stacks, unwinding
from anyprobe.handlers.llvm.stack_walk import Window
from anyprobe.handlers.llvm.words import I64, Local, Value, constant, load

_THREAD = 257
"""LLVM's address space of ``fs``."""


class PythonWalk:
    """Emits the loop over the frames of the interpreter."""

    def __init__(self, builder: ir.IRBuilder, tables: Value, window: Window, frames: Value, room: int) -> None:
        """Write to ``frames``, after what is there; ``room`` is how many it has room for."""
        self._builder, self._tables, self._window = builder, tables, window
        self._frames, self._room = frames, room

    def run(self, count: Value) -> Value:
        """Add the frames; return how many there are then."""
        builder = self._builder
        found, frame, turns = (Local(builder, each) for each in (count, constant(0), constant(0)))
        done = builder.append_basic_block("python_walked")
        self._unless(builder.icmp_unsigned("!=", self._tables, constant(0)), done)
        place = load(builder, self._tables, unwinding.PY_STATE)
        self._unless(builder.icmp_unsigned("!=", place, constant(0)), done)
        state = builder.load(builder.inttoptr(place, ir.PointerType(I64, _THREAD)))
        self._unless(builder.icmp_unsigned("!=", state, constant(0)), done)
        self._window.failed.set(constant(0))  # of the walk before, which has ended there
        part = self._window.word(builder.add(state, self._known(unwinding.PY_CURRENT)))
        frame.set(part)
        between = self._known(unwinding.PY_PART)
        with builder.if_then(builder.icmp_unsigned("!=", between, constant(unwinding.NO_PART))):
            frame.set(self._window.word(builder.add(part, between)))
        top = builder.append_basic_block("python_frame")
        builder.branch(top)
        builder.position_at_end(top)
        self._unless(builder.icmp_unsigned("!=", frame.get(), constant(0)), done)
        # frames that are no function's take no room: between any two of functions there is one at most
        self._unless(builder.icmp_unsigned("<", turns.get(), constant(2 * self._room)), done)
        turns.set(builder.add(turns.get(), constant(1)))
        code = self._window.word(builder.add(frame.get(), self._known(unwinding.PY_CODE)))
        kind = self._kind(frame.get())
        before = self._window.word(builder.add(frame.get(), self._known(unwinding.PY_PREVIOUS)))
        self._unless(builder.icmp_unsigned("==", self._window.failed.get(), constant(0)), done)
        tells_entry = builder.icmp_unsigned("!=", self._known(unwinding.PY_ENTRY), constant(0))
        is_own = builder.icmp_unsigned("==", kind, constant(unwinding.OF_INTERPRETER))
        is_own = builder.and_(is_own, builder.not_(tells_entry))
        with builder.if_else(is_own) as (own, function):
            with own:
                self._close(found.get())
            with function:
                self._unless(builder.icmp_unsigned("<", found.get(), constant(self._room)), done)
                entered = builder.and_(tells_entry, builder.icmp_unsigned("!=", kind, constant(0)))
                last = builder.select(entered, constant(stacks.LAST), constant(0))
                builder.store(builder.or_(self._marked(code), last), builder.gep(self._frames, [found.get()]))
                found.set(builder.add(found.get(), constant(1)))
        frame.set(before)
        builder.branch(top)
        builder.position_at_end(done)
        return found.get()

    def _known(self, word: int) -> Value:
        return load(self._builder, self._tables, word)

    def _kind(self, frame: Value) -> Value:
        """Return the byte that says of what kind a frame is."""
        builder = self._builder
        at = self._known(unwinding.PY_OWNER)
        word = self._window.word(builder.add(frame, builder.and_(at, constant(-8))))
        shift = builder.shl(builder.and_(at, constant(7)), constant(3))
        return builder.and_(builder.lshr(word, shift), constant(0xFF))

    def _marked(self, code: Value) -> Value:
        """Return what is kept of a frame: see ``data.layouts.stacks``; without a mark where that cannot be read."""
        builder = self._builder
        file, name = (
            self._window.word(builder.add(code, self._known(each))) for each in (unwinding.PY_FILE, unwinding.PY_NAME)
        )
        mixed = builder.xor(file, builder.mul(name, constant(3)))
        mixed = builder.mul(mixed, constant(stacks.MARK_FACTOR))
        mixed = builder.lshr(mixed, constant(64 - stacks.MARK_BITS))
        mixed = builder.shl(mixed, constant(stacks.MARK_SHIFT))
        address = builder.and_(code, constant((1 << stacks.MARK_SHIFT) - 1))
        return builder.or_(builder.or_(mixed, address), constant(stacks.PYTHON))

    def _close(self, count: Value) -> None:
        """Have the frame that was added last be the one for which C code has called the interpreter."""
        builder = self._builder
        place = builder.gep(self._frames, [builder.sub(count, constant(1))])
        last = builder.load(place)
        with builder.if_then(builder.icmp_signed("<", last, constant(0))):
            builder.store(builder.or_(last, constant(stacks.LAST)), place)

    def _unless(self, condition: Value, target: ir.Block) -> None:
        """Emit: go on if a condition holds, else to ``target``."""
        builder = self._builder
        on = builder.append_basic_block("on")
        builder.cbranch(condition, on, target)
        builder.position_at_end(on)
