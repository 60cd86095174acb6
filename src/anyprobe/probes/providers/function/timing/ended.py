"""The end of a program, for calls that it ends in: they have run until then."""

import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anyprobe.data.layouts.layout import BLOCK_OFF
from anyprobe.data.readers.open_calls import end_open_calls, gone_at, last_moment, thread_in
from anyprobe.probes.providers.function.reading import BankValues
from anyprobe.splice.regions.code_region import GoroutineBank

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anyprobe.probes.clock import Clock
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.splice.regions.code_region import SlotBank
    from anyprobe.target.base import RunningProcess

_LATE = 1.0
"""Seconds by which the end of a program is seen late at most, where it has told it itself."""


def end_calls(process: "RunningProcess", clock: "Clock", ns_per_tick: float, probes: "Iterable[Probe]") -> None:
    """Give calls that were running when a process ended their time up to there, in its memory; once.

    The moment is that of its call of ``_exit``, where it has made one that is seen, and else that at which its end was.
    Calls in fork children, and of goroutines, stay as they are.
    """
    ticks_per_second = 1e9 / ns_per_tick
    seen = clock.now() - round((time.monotonic() - process.ended_at) * ticks_per_second)
    groups = (group for probe in probes for timed in probe.timed for group in (timed.group, *timed.earlier))
    banks = {group.bank for group in groups if group.bank is not None and not isinstance(group.bank, GoroutineBank)}
    readers = {bank: BankValues().reader(bank) for bank in banks}
    told = max(
        (
            gone_at(block)
            for bank, reader in readers.items()
            if bank.layout.nested and not bank.clock and not bank.layout.on_processors
            for block in reader.open_blocks()
        ),
        default=0,
    )
    status = process.exit_status
    has_told = status is not None and os.WIFEXITED(status) and 0 <= seen - told <= _LATE * ticks_per_second
    for bank, reader in readers.items():
        ended_at, bank.end_is_told = told if has_told else seen, has_told
        ended = (
            end_open_calls(block, bank.layout, _of_thread(block, bank, process, ticks_per_second))
            if bank.layout.on_processors
            else end_open_calls(block, bank.layout, ended_at)
            for block in reader.open_blocks()
        )
        bank.open_at_end = sum(ended, Counter[int]())


def _of_thread(
    block: "NDArray[np.uint64]", bank: "SlotBank", process: "RunningProcess", ticks_per_second: float
) -> int:
    """Return when a thread was on a processor last, as far as that is known."""
    told, there = gone_at(block), process.scheduled_at_end.get(thread_in(block))
    if told:
        return told
    if there is None:
        return last_moment(block, bank.layout)
    return round(there.ran / 1e9 * ticks_per_second) + int(block[BLOCK_OFF // 8])
