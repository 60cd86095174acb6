"""Which of the sampled processes run Python, and what their samples tell of Python's functions."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import PermissionDenied, TargetError
from anyprobe.probes.profiling.python.recorder import FrameRecorder
from anyprobe.probes.profiling.python.stacks import PythonProgram, program_of
from anyprobe.probes.stacks.interpreter import Copied
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.probes.profiling.spaces import Space
    from anyprobe.probes.stacks.interpreter import Function
    from anyprobe.probes.stacks.unwinding import Frame
    from anyprobe.target.kernel.samples import Sample, Sampler
    from anyprobe.target.system.procfs import Mapping

_MOST_COPIED = 1_000
"""The frames of as many samples of a thread are kept until their samples come."""
_SAME_MOMENT = 300_000
"""As many nanoseconds are between what is noted of a sample and the copying of frames for it, at most."""


class PythonPrograms:
    """The interpreters of the sampled processes."""

    def __init__(self, sampler: "Sampler") -> None:
        """Know none yet."""
        self._sampler = sampler
        self._recorder: FrameRecorder | None = None
        self._programs: dict[int, tuple[list[Mapping], PythonProgram | None]] = {}
        self._copied: dict[int, deque[Copied]] = {}
        self._reasons: dict[int, str] = {}
        """Why functions are not known: in a process, or, with the number 0, in none."""
        self._samples = self._unknown = 0
        self._has_begun = False

    def of(self, space: "Space") -> PythonProgram | None:
        """Return the interpreter of a process; None if it has none, or there is a reason why it cannot be read."""
        known = self._programs.get(space.pid)
        if known is not None and known[0] is space.mappings:
            return known[1]
        if known is not None and known[1] is not None:
            known[1].close()
        program = None
        try:
            program = program_of(space)
            self._reasons.pop(space.pid, None)  # it was being loaded
        except TargetError as reason:
            self._reasons[space.pid] = str(reason)
        self._programs[space.pid] = space.mappings, program
        if program is not None and self._has_begun:
            self.begin()
        return program

    def begin(self) -> None:
        """Have frames be copied with each sample from now on, if there are any of Python."""
        self._has_begun = True
        if self._recorder is None and any(program for _, program in self._programs.values()):
            try:
                self._recorder = self._new_recorder()
            except TargetError as reason:
                self._reasons[0] = str(reason)
        self._watch_threads()

    def _new_recorder(self) -> FrameRecorder:
        if not self._sampler.may_take_programs:
            raise PermissionDenied("bpf", "frames may not be copied", "be root, or have CAP_PERFMON and CAP_BPF")
        if not procfs.is_first_namespace():
            raise TargetError("this is a container, in which the kernel's ids of threads are not known")
        return FrameRecorder(self._sampler.samplers)

    def _watch_threads(self) -> None:
        if self._recorder is not None:
            for _, program in self._programs.values():
                if program is not None:
                    program.watch_threads(self._recorder)

    def look(self) -> None:
        """Take the frames that have been copied, and see which threads there are now."""
        if self._recorder is not None:
            for each in self._recorder.take():
                self._copied.setdefault(each.tid, deque(maxlen=_MOST_COPIED)).append(each)
            self._watch_threads()

    def functions(
        self, space: "Space", sample: "Sample", frames: "Sequence[Frame]", *, complete: bool
    ) -> "tuple[dict[int, tuple[Function, ...] | None], Sequence[Function]]":
        """Return what each activation of an interpreter executes, by its stack pointer; None: that is not known.

        And what those execute that are not among the frames, where these are not ``complete``.
        """
        program = self.of(space)
        if program is None:
            return {}, ()
        at_once = self._copied_for(sample)
        found, rest = program.functions(sample, frames, at_once, complete=complete)
        self._samples += bool(found)
        self._unknown += None in found.values()
        return found, rest

    def _copied_for(self, sample: "Sample") -> Copied | None:
        """Return the frames that were copied for a sample, the nearest ones: kernels copy them before it, or after.

        Samples of switches can follow one another soon, and the frames of one are not those of the next.
        """
        copied = self._copied.get(sample.tid)
        if not copied:
            return None
        while len(copied) > 1 and abs(copied[1].time - sample.time) <= abs(copied[0].time - sample.time):
            copied.popleft()
        return copied.popleft() if abs(copied[0].time - sample.time) <= _SAME_MOMENT else None

    def warnings(self) -> Iterator[str]:
        """Yield what is not known."""
        for reason in dict.fromkeys(self._reasons.values()):
            yield f"Python's functions are not known: {reason}"
        if self._unknown and self._recorder is not None:
            yield f"Python's functions are not known, or not all, of {self._unknown:,} of {self._samples:,} samples"

    def close(self) -> None:
        """Close what was opened."""
        for _, program in self._programs.values():
            if program is not None:
                program.close()
        self._programs.clear()
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
