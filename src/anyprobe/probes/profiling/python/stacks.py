"""Python's functions in their places on sampled stacks."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.probes.profiling.python.recorder import FrameRecorder
from anyprobe.probes.stacks.interpreter import Activation, Function, Interpreter
from anyprobe.probes.stacks.interpreter_layouts import Layout
from anyprobe.probes.stacks.interpreter_places import places_of
from anyprobe.target.process import permission
from anyprobe.target.system import procfs
from anyprobe.target.system.memory import ReadableMemory

if TYPE_CHECKING:
    from anyprobe.probes.profiling.spaces import Space
    from anyprobe.probes.stacks.interpreter import Copied
    from anyprobe.probes.stacks.unwinding import Frame
    from anyprobe.target.kernel.samples import Sample


class PythonProgram:
    """A process that runs Python: its interpreter, and what of it is on sampled stacks."""

    def __init__(self, pid: int, memory: ReadableMemory, runtime: int, layout: Layout, loop: range) -> None:
        """``runtime``: where ``_PyRuntime`` is; ``loop``: the addresses of what executes Python's instructions."""
        self._pid, self._memory, self._layout, self._loop = pid, memory, layout, loop
        self._interpreter = Interpreter(memory.read, runtime, layout)
        self._watched: dict[int, int] = {}
        self._own_ids: dict[int, int] = {}
        """The ids by which threads know themselves, of those that there were at the last look."""

    def watch_threads(self, recorder: FrameRecorder) -> None:
        """Have the frames of all threads be copied that the interpreter has now."""
        with suppress(OSError, TargetError, MemoryFault):
            current = self._interpreter.threads()
            known = self._own_ids
            self._own_ids = {tid: known.get(tid) or procfs.own_id(tid) for tid in procfs.read_tasks(self._pid)}
            for tid, own in self._own_ids.items():
                place = current.get(own)
                if place is not None and self._watched.get(tid) != place:
                    recorder.watch(tid, place, self._layout.frame_of_part, self._layout.previous)
                    self._watched[tid] = place

    def is_activation(self, frame: "Frame") -> bool:
        """Return whether a frame is one of the interpreter that executes Python's instructions."""
        return frame.at in self._loop

    def functions(
        self, sample: "Sample", frames: Sequence["Frame"], copied: "Copied | None", *, complete: bool
    ) -> tuple[dict[int, tuple[Function, ...] | None], Sequence[Function]]:
        """Return the functions that each activation of the interpreter executes, by its stack pointer, and the rest.

        Innermost first; None where they are not known. The rest is of activations that are not among the frames, where
        these are not ``complete``: a function of C, such as ``select``, can have a larger stack than what is copied.
        ``copied``: the frames at that moment.
        """
        assert sample.registers is not None
        sp, stack = sample.registers[1], sample.stack
        ends = (*(frame.sp for frame in frames[1:]), sp + len(stack))
        activations = [
            Activation(frame.sp, end) for frame, end in zip(frames, ends, strict=True) if self.is_activation(frame)
        ]

        def read(address: int, size: int) -> bytes:
            at = address - sp
            if not 0 <= at <= len(stack) - size:  # it is the thread's own, or too far out
                return self._memory.read(address, size)
            return stack[at : at + size]

        executed: Sequence[tuple[Function, ...] | None] = [None] * len(activations)
        if activations and copied is not None:
            with suppress(TargetError):
                executed = self._interpreter.executed(copied, read, activations)
        rest: Sequence[Function] = ()
        if not complete and copied is not None and None not in executed:
            with suppress(TargetError, MemoryFault):
                rest = self._interpreter.chain(copied)[sum(len(each or ()) for each in executed) :]
        return {each.start: functions for each, functions in zip(activations, executed, strict=True)}, rest

    def close(self) -> None:
        """Close what was opened."""
        self._memory.close()


def program_of(space: "Space") -> PythonProgram | None:
    """Return the interpreter that a process has, None if it has none.

    Raises:
        TargetError: its structures are not known, or cannot be read.
    """
    places = places_of(space.objects)
    if places is None:
        return None
    try:
        memory = ReadableMemory(space.pid)
    except OSError as error:
        raise permission.explain(space.pid) from error
    try:
        layout = places.layout(memory.read)
    except TargetError:
        memory.close()
        raise
    return PythonProgram(space.pid, memory, places.runtime, layout, places.loop)
