"""How handlers read the program's memory: whether by system calls, and what must not be faulted in by them.

What serves a fault may be the very thread that would wait for it: where userfaultfd is used, or a file system in user
space, handlers read what is resident.
"""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from anyprobe.data.layouts.guarded import ASKED, GUARD_BYTES, UNKNOWN, WATCHED, fewer, write_ranges
from anyprobe.probes.providers.function.handlers.filter_watch import FilterWatch
from anyprobe.probes.providers.function.handlers.own_memory import reading_facts
from anyprobe.splice.userspace.userfault_hook import MountChecks, UserfaultChecks
from anyprobe.target.system.memory_kinds import served_memory

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.splice.codegen.handlers.memory_routines import ReadingFacts
    from anyprobe.splice.regions.stores import Store

_GUARD_AT = 16
"""Where the structure is that guards memory; the word before belongs to others, and that of filters comes first."""
READS_BYTES = _GUARD_AT + GUARD_BYTES


class MemoryReads:
    """What is known of a process's memory, and what is watched of it."""

    def __init__(self, session: "ProbeHost", store: "Store", offset: int) -> None:
        """Look at it; there are ``READS_BYTES`` for this in a store, from an offset on."""
        self._session, objects = session, session.symbols.objects
        at = offset + _GUARD_AT
        self._guard, self._guard_at = store.view()[at : at + GUARD_BYTES], store.address + at
        self._filters = FilterWatch(session.splicing, objects, store.address + offset)
        watched = self._guard_at + WATCHED
        self._faults = [
            FilterWatch(session.splicing, objects, watched, checks=checks)
            for checks in (UserfaultChecks(), MountChecks())
        ]
        self._known: list[tuple[int, int]] | None = None
        self._asked = 0
        self.look(thoroughly=True)

    def facts(self) -> "ReadingFacts":
        """Return what the routines that read it rely on, once it is watched."""
        self.place()
        closed = self._filters.word
        return replace(self._memory, system_calls=self._filters.permits, closed=closed, guard=self._guard_at)

    def place(self) -> None:
        """Watch what the C library does, if that is there by now."""
        self._filters.place()
        for each in self._faults:
            each.place()

    def look(self, *, thoroughly: bool = False) -> None:
        """See whether memory has come that must not be faulted in. It is never forgotten: more may come at any time.

        What the program asks for is there some time after it was seen to ask: two looks with nothing in between.
        """
        words = self._guard.cast("I")
        state, asked = words[WATCHED // 4], words[ASKED // 4]
        settled, self._asked = asked == self._asked, asked
        if state == UNKNOWN and not settled:
            return
        found, never = served_memory(self._session.pid, thoroughly=thoroughly or state > 0)
        if state == UNKNOWN or (found and never != self._known):
            self._known = never
            write_ranges(self._guard, fewer(never))
            if words[ASKED // 4] != asked:
                words[WATCHED // 4] = UNKNOWN

    @cached_property
    def _memory(self) -> "ReadingFacts":
        return reading_facts(self._session)
