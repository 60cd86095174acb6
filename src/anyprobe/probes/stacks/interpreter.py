"""What the threads of a Python program execute, read from the interpreter's structures while they run."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from anyprobe.core.memory import MemoryFault
from anyprobe.data.layouts import stacks
from anyprobe.data.layouts.unwinding import NO_PART, OF_INTERPRETER
from anyprobe.probes.stacks.interpreter_layouts import Layout

Read = Callable[[int, int], bytes]
"""Returns bytes of the program's memory, or raises ``MemoryFault``."""
_MOST_THREADS, _MOST_KEPT, _MOST_FRAMES = 10_000, 10_000, 200
_LONGEST_TEXT = 1_000
_SHIM = "<shim>"
"""The file of what the interpreter itself puts between functions, as to check what ``__init__`` returns."""
_WORD = struct.Struct("<Q")
_COMPACT, _ASCII = 1 << 5, 1 << 6
_CODECS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class Function(NamedTuple):
    """A function of a Python program."""

    name: str
    file: str
    """Its path, as the interpreter knows it."""

    @property
    def module(self) -> str:
        """The end of the path, which tells modules apart."""
        return "/".join(self.file.split("/")[-2:])


class Copied(NamedTuple):
    """The frames of a thread at one moment."""

    tid: int
    time: int
    """Nanoseconds of the monotonic clock."""
    current: int
    """What the thread's state says that it executes."""
    frames: dict[int, bytes]
    """The beginnings of frames, by their addresses."""


class Activation(NamedTuple):
    """A frame on the C stack of the function that executes Python's instructions."""

    start: int
    end: int


class Interpreter:
    """The interpreter of one process."""

    def __init__(self, read: Read, runtime: int, layout: Layout) -> None:
        """``runtime``: where ``_PyRuntime`` is."""
        self._read, self._runtime, self._layout = read, runtime, layout
        self._functions: dict[int, tuple[bytes, Function]] = {}
        self._frames: dict[int, tuple[bytes, Function]] = {}

    def threads(self) -> Mapping[int, int]:
        """Return where the state of each thread says what it executes, by the ids that threads know themselves by.

        Raises:
            MemoryFault: it cannot be read, or has changed meanwhile.
        """
        return {tid: state + self._layout.current for tid, state in self._listed()}

    def states(self) -> frozenset[int]:
        """Return where the states of all threads are; raise as ``threads`` does."""
        return frozenset(state for _, state in self._listed())

    def executing(self, tid: int) -> list[list[Function]]:
        """Return the functions of each activation of a thread that is asleep, innermost first, by its own id.

        Raises:
            MemoryFault: they cannot be read.
        """
        layout = self._layout
        place = self.threads().get(tid)
        frame = 0 if place is None else self._word(place)
        if frame and layout.frame_of_part is not None:
            frame = self._word(frame + layout.frame_of_part)
        found: list[list[Function]] = [[]]
        for _ in range(_MOST_FRAMES):
            if not frame:
                break
            content = self._read(frame, layout.owner + 4)
            owner, is_function = content[layout.owner], True
            if not layout.tells_entry:
                is_function = owner != OF_INTERPRETER
            if is_function:
                function = self._function(frame, content)
                found[-1] += [function] if function.file != _SHIM else []
            if owner if layout.tells_entry else not is_function:
                found.append([])
            frame = _word(content, layout.previous)
        return found

    def words(self, state_at: int) -> tuple[int, ...]:
        """Return the words by which handlers find frames: see ``data.layouts.unwinding``."""
        layout = self._layout
        part = NO_PART if layout.frame_of_part is None else layout.frame_of_part
        entry = int(layout.tells_entry)
        return (
            state_at,
            layout.current,
            part,
            layout.code,
            layout.previous,
            layout.owner,
            entry,
            layout.file,
            layout.name,
        )

    def marked(self, frame: int) -> Function | None:
        """Return the function that a handler has marked on a stack (``data.layouts.stacks``); None: it is not known.

        The code object may be gone, and another one be there: the mark tells, in all but one of some 16,000 cases.
        """
        code = stacks.code_of(frame)
        try:
            content = self._read(code, self._layout.name + 8)
            if (
                stacks.mark(code, _word(content, self._layout.file), _word(content, self._layout.name))
                != frame & ~stacks.LAST
            ):
                return None
            return self._function_of(code)
        except MemoryFault:
            return None

    def _listed(self) -> Iterator[tuple[int, int]]:
        layout = self._layout
        interpreter = self._word(self._runtime + layout.interpreters)
        for _ in range(_MOST_THREADS):
            if not interpreter:
                return
            state = self._word(interpreter + layout.threads)
            for _ in range(_MOST_THREADS):
                if not state:
                    break
                yield self._word(state + layout.thread_id), state
                state = self._word(state + layout.next_thread)
            interpreter = self._word(interpreter + layout.next_interpreter)

    def executed(
        self, copied: Copied, stack: Read, activations: Sequence[Activation]
    ) -> Sequence[tuple[Function, ...] | None]:
        """Return the functions that each activation executes; None of one of which they are not known.

        Both innermost first: a function that another one of the same activation has called comes before it.
        ``stack``: reads the C stack as it was when the frames were copied.
        """
        found: list[tuple[Function, ...] | None] = [None] * len(activations)
        try:
            for place, functions in self._divided(copied, stack):
                for at, (start, end) in enumerate(activations):
                    if start <= place < end:
                        found[at] = functions
        except MemoryFault:  # it is deeper than what was copied
            pass
        return found

    def chain(self, copied: Copied) -> list[Function]:
        """Return the functions of all activations together, innermost first, as far as they were copied."""
        layout = self._layout
        found = [
            self._function(frame, content)
            for frame, content in copied.frames.items()
            if layout.tells_entry or content[layout.owner] != OF_INTERPRETER
        ]
        return [each for each in found if each.file != _SHIM]

    def _divided(self, copied: Copied, stack: Read) -> Iterator[tuple[int, tuple[Function, ...]]]:
        """Yield the functions by the activations that execute them, and where on the C stack these are."""
        layout = self._layout
        functions: list[Function] = []
        part = frame = copied.current
        if layout.frame_of_part is not None:
            frame = _word(stack(part, 24), layout.frame_of_part)
        while frame:
            content = copied.frames.get(frame)
            if content is None:
                raise MemoryFault(frame, 1)
            owner, place = content[layout.owner], frame
            if layout.tells_entry or owner != OF_INTERPRETER:
                function = self._function(frame, content)
                if function.file != _SHIM:
                    functions.append(function)
            frame = _word(content, layout.previous)
            if layout.tells_entry and owner:
                yield part, tuple(functions)
                functions = []
                part = _word(stack(part, 24), layout.previous_part) if frame else 0
            elif not layout.tells_entry and owner == OF_INTERPRETER:
                yield place, tuple(functions)
                functions = []

    def _function(self, frame: int, content: bytes) -> Function:
        known = self._frames.get(frame)
        if known is not None and known[0] == content:  # which keeps its code object alive
            return known[1]
        if len(self._frames) > _MOST_KEPT:
            self._frames.clear()
        found = self._function_of(_word(content, self._layout.code))
        self._frames[frame] = content, found
        return found

    def _function_of(self, code: int) -> Function:
        layout = self._layout
        content = self._read(code, layout.name + 8)
        key = content[layout.first_line : layout.first_line + 4]
        key += content[layout.file : layout.file + 8] + content[layout.name : layout.name + 8]
        known = self._functions.get(code)
        if known is not None and known[0] == key:
            return known[1]
        found = Function(self._text(_word(content, layout.name)), self._text(_word(content, layout.file)))
        if len(self._functions) > _MOST_KEPT:
            self._functions.clear()
        self._functions[code] = key, found
        return found

    def _text(self, address: int) -> str:
        layout = self._layout
        head = self._read(address, 40)
        size, state = _word(head, 16), head[32]
        width = state >> 2 & 7
        if not state & _COMPACT or width not in _CODECS or size > _LONGEST_TEXT:
            raise MemoryFault(address, 40)
        start = layout.text if state & _ASCII else layout.wide_text
        return self._read(address + start, size * width).decode(_CODECS[width], "replace")

    def _word(self, address: int) -> int:
        return _word(self._read(address, 8), 0)


def _word(content: bytes, at: int) -> int:
    value: int = _WORD.unpack_from(content, at)[0]
    return value
