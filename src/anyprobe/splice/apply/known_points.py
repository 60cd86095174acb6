"""Return points that are spliced together with the functions whose calls end there, so that none has to be learnt."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.data.layouts.layout import CALLER_WATCHED
from anyprobe.splice.edits import Edit, hook_of
from anyprobe.splice.regions.code_region import SlotBank

if TYPE_CHECKING:
    from anyprobe.data.layouts.callers import CallerTables


def tables_of(bank: SlotBank) -> "CallerTables":
    """Return the tables of a bank by which calls find out where they end."""
    from anyprobe.data.layouts.callers import CallerTables

    return CallerTables(bank.arena.view(bank.piece.offset, bank.piece.size), bank.layout)


def watch_return_points(edits: Sequence[Edit]) -> None:
    """Say that calls end at the return points that are armed with their function from now on.

    It has no calls yet. Where it turns out that a point cannot be armed, that is said as soon as it is known.
    """
    for edit in edits:
        for want in edit.added if edit.change is not None else ():
            hook = hook_of(want)
            if hook is not None and hook.ends is not None and isinstance(hook.ends.bank, SlotBank):
                bank, record = hook.ends.bank, hook.ends.offset
                if bank.layout.callers and hook.refusal is None:
                    tables_of(bank).set(want.address + edit.module.bias, record, CALLER_WATCHED)
