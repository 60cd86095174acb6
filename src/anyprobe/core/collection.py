"""Python's cyclic garbage collector, kept out of bulk work: it would walk the same growing heap again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

BULK, MUCH, TOO_MUCH = 20_000, 1_000_000, 8_000_000
"""Objects: enough to take time to walk; enough for a collection where no user waits, and enough for one anywhere."""
_OLDEST = 2
_made = _left = 0
"""Objects made in bulk work since the last collection of all, and old ones that were left by that."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no cycles within a ``with`` block (reference counting goes on).

    What was made in it, if much, counts as long-lived afterwards: the first collection after it would walk it all.
    Python itself collects such objects seldom, so ``collect_what_was_made`` has to be called where time is no matter.
    """
    global _made  # noqa: PLW0603 - the collector is one, too
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        number = gc.get_count()[0]
        if number > BULK and gc.get_freeze_count() == 0:  # else it would thaw what other code has frozen
            _made += number
            gc.freeze()
            gc.unfreeze()
        gc.enable()
        collect_what_was_made(TOO_MUCH)


def collect_what_was_made(least: int = MUCH) -> None:
    """Collect all cycles if so many objects were made in bulk work since that was done last, and are there still."""
    global _made, _left  # noqa: PLW0603 - the collector is one, too
    if _made < least or not gc.isenabled():
        return
    _made, there = 0, len(gc.get_objects(_OLDEST))
    if least and there - _left < least // 2:  # by far the most were freed by reference counting
        _left = min(_left, there)
        return
    gc.collect()
    _left = len(gc.get_objects(_OLDEST))
