"""C++ coroutines that hand over to one another by jumps (symmetric transfer): a step ends at its jump.

What is jumped to is no callee: it is another coroutine, which hands over to a third one, and when something returns at
last, to where the first one was resumed, that is the end of none of these steps. To follow them to there would fill the
thread's room for open calls with one for each step.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anyprobe.binary.flow.exits import ExitKind

if TYPE_CHECKING:
    from anyprobe.binary.flow.exits import Exit
    from anyprobe.probes.providers.function.probe import Probe

STEPS = (
    "C++ coroutines that hand over to another one by a jump (symmetric transfer) are timed step by step: to the jump, "
    "without what is jumped to"
)
_STEP = re.compile(r"\.(actor|resume|destroy|cleanup)(\.|$)")
"""How GCC and Clang call the functions that they make of a coroutine's body."""


def hands_over(names: "Iterable[str]", leaving: "Exit") -> bool:
    """Return whether a function of C or C++ with these names ends there by resuming another coroutine."""
    return leaving.kind is ExitKind.TAIL and leaving.indirect and any(_STEP.search(name) for name in names)


def some_hand_over(probes: "Iterable[Probe]") -> bool:
    """Return whether any of the functions that are timed do."""
    ends = ((place, place.exit) for probe in probes for timed in probe.timed for place in timed.places)
    return any(
        place.armed and leaving is not None and hands_over(place.site.function.names, leaving)
        for place, leaving in ends
        if not place.site.object.image.is_go
    )
