"""Whose time it is, as far as rows say: each function's own, and what is in no row though timed calls have taken it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from anyprobe.data.layouts.layout import UNNAMED
from anyprobe.data.snapshots.sums import total

if TYPE_CHECKING:
    from anyprobe.data.readers.reader import BankReader
    from anyprobe.data.snapshots.nested import NestedTiming
    from anyprobe.data.snapshots.snapshot import FunctionTiming
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.splice.regions.code_region import SlotBank


def other_time(
    probes: "Iterable[Probe]",
    reader: "Callable[[SlotBank], BankReader]",
    functions: "Iterable[FunctionTiming]",
    ns_per_tick: float,
) -> "NestedTiming | None":
    """Return the time that is no function's own; None where it is not known which calls have made which.

    It was spent on other stacks, outside of all timed calls, while some waited (``root_ns``), or in calls that are not
    over and whose callers are. ``reader`` reads a bank.
    """
    groups = [group for probe in probes for timed in probe.timed for group in (timed.group, *timed.earlier)]
    banks = {group.bank for group in groups if group.bank is not None and group.bank.layout.nested}
    if not banks:
        return None
    from anyprobe.data.snapshots.nested import NestedTiming

    known = [(each, each.nested) for each in functions if each.nested is not None]
    own = total((each, round(nested.self_ns)) for each, nested in known)
    roots = total((each, round(nested.root_ns)) for each, nested in known)
    elsewhere = sum(reader(bank).record(bank.layout.offset_of(UNNAMED)).roots for bank in banks) * ns_per_tick
    return NestedTiming(max(roots + elsewhere - own, 0.0), 0.0, elsewhere)
