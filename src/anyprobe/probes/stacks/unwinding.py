"""Stacks gone up in the controller, by the rules that handlers go by in the target."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from anyprobe.binary.unwind.rules import (
    AT_RBP,
    END,
    FRAME_LIMIT,
    GO,
    NONE,
    OF_RBP,
    OF_RSP,
    OFFSET_SHIFT,
    SAVED_MASK,
    SAVED_SHIFT,
    SIGNAL,
    SIGNAL_RBP,
    SIGNAL_RIP,
    SIGNAL_RSP,
    STUB,
)
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault

Word = Callable[[int], int]
"""Returns the word at an address of the stack, or raises ``MemoryFault``."""
DEPTH = 126


class Frame(NamedTuple):
    """Where a function is, and what its caller's frame is found by."""

    pc: int
    sp: int
    bp: int
    exact: bool = False
    """Whether the instruction at ``pc`` comes next; else it is the one after a call."""

    @property
    def at(self) -> int:
        """An address in the function: what is after a call may be another function's."""
        return self.pc - (not self.exact)


class Walk(NamedTuple):
    """The frames of a stack, innermost first."""

    frames: list[Frame]
    complete: bool
    """Whether the last one is the outermost; else it is not known what has called it."""


class Code(ABC):
    """What is known of the code of a process: where there is any, and by which rules frames are left."""

    @abstractmethod
    def rule(self, at: int) -> int | None:
        """Return the unwinding rule of an instruction, ``NONE`` where there is none; None where there is no code."""

    @abstractmethod
    def begins(self, pc: int) -> bool:
        """Return whether a function begins here: then the return address is on top of the stack."""

    def has_frame(self, frame: Frame, *, innermost: bool) -> bool:  # noqa: ARG002 - for those who know more
        """Return whether code without a rule may be taken to keep its frame pointer."""
        return True

    def is_return(self, pc: int) -> bool:  # noqa: ARG002 - for those who know more
        """Return whether a word where a return address is taken to be may be one."""
        return True


def walk(code: Code, first: Frame, word: Word, depth: int = DEPTH) -> Walk:
    """Return a stack from its innermost frame on."""
    frames = [first]
    while len(frames) <= depth:
        try:
            rule = code.rule(frames[-1].at)
            if rule is None:
                break
            if rule & 7 == END:
                return Walk(frames, complete=True)
            caller = _caller(code, rule, frames[-1], word, innermost=len(frames) == 1)
            if caller is None or (caller.pc and code.rule(caller.at) is None):
                break
        except (MemoryFault, TargetError):  # what is beyond is not known
            break
        if caller.pc == 0:  # which is no proof where it was found by what may be no frame pointer
            return Walk(frames, complete=rule & 7 != NONE)
        frames.append(caller)
    return Walk(frames[:depth], complete=False)


def _caller(code: Code, rule: int, frame: Frame, word: Word, *, innermost: bool) -> Frame | None:
    kind, offset = rule & 7, rule >> OFFSET_SHIFT & 0xFFFF
    words = offset - (offset >> 15 << 16)
    if kind == SIGNAL:
        pc, sp, bp = (word(frame.sp + each) for each in (SIGNAL_RIP, SIGNAL_RSP, SIGNAL_RBP))
        return Frame(pc, sp, bp, exact=True)
    if kind == NONE:
        return _by_frame_pointer(code, frame, word, innermost=innermost)
    above, bp = 0, frame.bp
    if kind in (OF_RSP, GO):
        above = frame.sp + 8 * words
        bp = frame.bp if kind == OF_RSP else 0
    elif kind == OF_RBP:
        above = frame.bp + 8 * words
    elif kind == STUB:
        above = frame.sp + 8 + 8 * (frame.pc & 15 >= words)
    elif kind == AT_RBP:
        above, bp = word(frame.bp + 8 * words), word(frame.bp)
    if above <= frame.sp:
        return None
    saved = above - 8 * (rule >> SAVED_SHIFT & SAVED_MASK)
    if frame.sp <= saved < above:  # else it has been taken from the stack again
        bp = word(saved)
    pc = word(above - 8)
    return Frame(pc, above, bp) if kind != GO or _is_return(code, pc) else None


def _is_return(code: Code, pc: int) -> bool:
    """Return whether a word may be a return address, or leads to where a stack begins, which nothing has called."""
    rule = code.rule(pc - 1)
    return code.is_return(pc) or (rule is not None and rule & 7 == END)


def _by_frame_pointer(code: Code, frame: Frame, word: Word, *, innermost: bool) -> Frame | None:
    if innermost and code.begins(frame.pc):
        return Frame(word(frame.sp), frame.sp + 8, frame.bp)
    if not 0 <= frame.bp - frame.sp < FRAME_LIMIT or frame.bp % 8 or not code.has_frame(frame, innermost=innermost):
        return None
    pc = word(frame.bp + 8)
    return Frame(pc, frame.bp + 16, word(frame.bp)) if pc == 0 or code.is_return(pc) else None
