"""How far a thread in a routine has come: what has to be done so that the program sees nothing of the routine."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from anyprobe.isa.assemble import Assembler


class Progress(Enum):
    """What has to be done with a thread in a routine so that the program sees nothing of it."""

    BACK = auto()
    """Nothing is done yet: it can go back to the call."""
    RESERVED = auto()
    """An instance is reserved and not filled: it can go back if that is given back."""
    FORWARD = auto()
    """Everything is done: it can go on after the call."""
    HALF = auto()
    """It has to go on."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of a routine's code."""

    start: int
    end: int
    progress: Progress
    name: str

    @property
    def begins(self) -> bool:
        """Whether a routine begins here."""
        return self.name in _ROUTINES


EXITS = ("leave", "leave_tail", "leave_caller", "leave_switch")
"""The routines that end calls; the last one only where calls are nested."""
_ROUTINES = frozenset(
    {
        "acquire",
        "acquire_new",
        "adopt",
        "process",
        "count",
        "enter",
        "unwind",
        *EXITS,
        "purge",
        "settle",
        "now",
        "moment",
        "waited",
        "view",
        "check",
        "find",
        "block",
    }
)
_PROGRESS = {
    "acquire": Progress.BACK, "acquire_new": Progress.BACK, "process": Progress.BACK, "now": Progress.BACK,
    "moment": Progress.BACK, "waited": Progress.BACK, "waited_thread": Progress.HALF, "waited_mapped": Progress.BACK,
    "enter_waited": Progress.RESERVED,
    "adopt": Progress.BACK, "adopt_half": Progress.HALF, "adopt_whole": Progress.BACK,
    "count": Progress.BACK, "count_done": Progress.FORWARD, "count_shared": Progress.BACK,
    "count_shared_done": Progress.FORWARD,
    "enter": Progress.BACK, "enter_reserved": Progress.RESERVED, "enter_done": Progress.FORWARD,
    "enter_first": Progress.BACK,
    "enter_shared_missed": Progress.FORWARD, "enter_other": Progress.BACK,
    "enter_full": Progress.RESERVED,
    "enter_unreserved": Progress.BACK, "enter_missed": Progress.BACK, "enter_missed_done": Progress.FORWARD,
    "enter_leaving": Progress.RESERVED, "enter_left": Progress.BACK, "enter_new_node": Progress.RESERVED,
    "purge": Progress.BACK, "purge_begun": Progress.HALF, "purge_done": Progress.BACK,
    "settle": Progress.BACK, "settle_begun": Progress.HALF, "settle_done": Progress.BACK,
    "unwind": Progress.BACK,
    "unwind_done": Progress.FORWARD, "unwind_caught": Progress.BACK, "unwind_closed": Progress.BACK,
}  # fmt: skip
_LEAVE_PROGRESS = {
    "": Progress.BACK, "_taken": Progress.HALF, "_done": Progress.FORWARD,
    # where it began anew it would never end if it took longer than it is from one signal to the next
    "_search": Progress.HALF,
    "_removed": Progress.HALF, "_shrink": Progress.HALF,
    "_unmatched": Progress.BACK, "_unmatched_done": Progress.FORWARD,
    "_stranger": Progress.BACK, "_stranger_done": Progress.FORWARD,
    "_jumped": Progress.BACK, "_jumped_done": Progress.FORWARD, "_left": Progress.HALF,
    "_closed": Progress.BACK, "_leaving": Progress.BACK, "_trial": Progress.FORWARD, "_waited": Progress.BACK,
    "_newmax": Progress.HALF,
}  # fmt: skip


def progress_in_routines() -> dict[str, Progress]:
    """Return what has to be done with a thread after each label."""
    known = dict(_PROGRESS)
    for name in EXITS:
        known.update({name + end: progress for end, progress in _LEAVE_PROGRESS.items()})
    return known


def stretches_of(asm: Assembler, address: int, size: int, known: Mapping[str, Progress]) -> tuple[Stretch, ...]:
    """Divide code at ``address`` by what has to be done with a thread after each label."""
    marks = sorted((asm.offset_of(name), name) for name in known if asm.has(name))
    ends = [*(offset for offset, _ in marks[1:]), size]
    return tuple(
        Stretch(address + offset, address + end, known[name], name)
        for (offset, name), end in zip(marks, ends, strict=True)
    )
