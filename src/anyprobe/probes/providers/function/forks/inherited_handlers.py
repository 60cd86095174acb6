"""Handlers that a fork child has inherited: what is to be known of them where the child has a session of its own."""

from collections.abc import Callable
from dataclasses import fields, replace

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.journal.memfds import is_ours
from anyprobe.probes.providers.function.host import ProbeHost
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.splice.codegen.handlers.facts import HandlerFacts, instances_bytes

_NO_HANDLER = "the handler's memory is not mapped in a child that was forked before it was placed"


class InheritedHandlers:
    """The handlers of a parent's session, as they are in one child."""

    def __init__(self, child: ProbeHost, parent: ProbeHost) -> None:
        """Know none yet."""
        self._child, self._holdings = child, parent.splicing.holdings
        self._found: dict[int, tuple[HandlerFacts, HandlerFacts | None]] = {}
        self._instances: dict[int, int] = {}

    def equip(self, equip: Callable[[Probe], None], part: Probe) -> None:
        """Have places call the parent's handlers, whose memory the child has inherited; refuse what it has not."""
        equip(part)
        kept = []
        for place in part.places:
            facts = place.hook.handler
            if facts is not None:
                place.hook.handler = self._here(facts)
            if facts is None or place.hook.handler is not None:
                kept.append(place)
            else:
                part.refuse(place.site, Refusal(Reason.GONE, place.want.address, _NO_HANDLER), place.module)
        part.places = kept

    def _here(self, facts: HandlerFacts) -> HandlerFacts | None:
        """Return what is to be known of a handler in the child, None where its memory is not mapped there."""
        if id(facts) not in self._found:
            self._found[id(facts)] = facts, self._look(facts)
        return self._found[id(facts)][1]

    def _look(self, facts: HandlerFacts) -> HandlerFacts | None:
        if facts.pool:
            return None
        words = [
            *facts.storages,
            *(getattr(each, name.name) for each in (facts, facts.reading) for name in fields(each)),
        ]
        needed = {each for each in words if isinstance(each, int) and self._holdings.covers(each)}
        inodes = self._holdings.inodes()
        there = [each for each in self._child.mappings() if each.inode in inodes and is_ours(each)]
        if not all(any(each.start <= address < each.end for each in there) for address in needed):
            return None
        return replace(facts, pid=self._child.pid, instances=self._instances_for(facts))

    def _instances_for(self, facts: HandlerFacts) -> int:
        """Return where calls have their data in the child, by where they have it in the parent; 0: they have none."""
        parents = facts.instances
        if parents and parents not in self._instances:
            (store,) = self._child.splicing.map_stores([instances_bytes(facts.instance_threads)])
            self._instances[parents] = store.address
        return self._instances.get(parents, 0)
