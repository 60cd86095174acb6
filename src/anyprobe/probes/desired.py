"""What is wanted of a process, apart from what is installed: specs with policies, and where each was looked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from anyprobe.probes.probe import Probe

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject


class Policy(Enum):
    """In which objects a spec means something."""

    PRESENT = "present"
    """In those that are loaded when it is asked for; of a program that is held at its start, also in the libraries that
    it is linked with."""
    FOLLOW = "follow"
    """In whatever is loaded later, too."""


@dataclass(eq=False)
class Desired:
    """One spec that is wanted."""

    probe: Probe
    policy: Policy = Policy.PRESENT
    seen: "set[LoadedObject]" = field(default_factory=set)
    """The objects in which its sites have been looked for."""
    is_open: bool = False
    """Whether there may be more of it in objects that are not loaded yet."""

    @property
    def may_mean_nothing(self) -> bool:
        """Whether it is no mistake that nothing is found in the objects of now."""
        return self.policy is Policy.FOLLOW or bool(self.probe.all_places or self.probe.refused)

    def add(self, part: Probe) -> None:
        """Take over what has been found in further objects."""
        probe = self.probe
        probe.places, probe.timed = probe.places + part.places, probe.timed + part.timed
        probe.exitless = probe.exitless + part.exitless
        self.add_refused(part)

    def add_refused(self, part: Probe) -> None:
        """Take over what is refused there, once."""
        known = {spec for spec, _ in self.probe.refused}
        self.probe.refused += [each for each in part.refused if each[0] not in known]


@dataclass
class DesiredState:
    """Everything that is wanted of one process."""

    wanted: list[Desired] = field(default_factory=list)

    def lacking(self, modules: "Sequence[LoadedObject]") -> "Iterator[tuple[Desired, set[LoadedObject]]]":
        """Yield what has not been looked for in all the objects that are loaded, and in which of them."""
        for each in self.wanted:
            each.seen &= set(modules)  # what was unloaded may come again
            fresh = set(modules) - each.seen
            if each.is_open and fresh:
                yield each, fresh

    def settle(self) -> None:
        """Want no more of what was only wanted in the objects of now."""
        self.wanted = [each for each in self.wanted if each.policy is Policy.FOLLOW]

    @property
    def follows(self) -> bool:
        """Whether anything is wanted in objects that are loaded later."""
        return any(each.policy is Policy.FOLLOW for each in self.wanted)
