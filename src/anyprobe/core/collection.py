"""Python's cyclic garbage collector, kept out of bulk work: it would walk the same growing heap again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MUCH, TOO_MUCH = 100_000, 2_000_000
"""Objects: what is worth a collection where nobody waits, and what is worth one anywhere."""
_made = 0
"""Objects made in bulk work since the last collection of all."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no cycles within a ``with`` block (reference counting goes on).

    What was made in it counts as long-lived afterwards: the first collection behind it would walk it all. Python itself
    collects such objects seldom, so ``collect_what_was_made`` has to be called where that is of no matter.
    """
    global _made  # noqa: PLW0603 - the collector is one, too
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # else it would thaw what somebody has frozen
            _made += gc.get_count()[0]
            gc.freeze()
            gc.unfreeze()
        gc.enable()
        collect_what_was_made(TOO_MUCH)


def collect_what_was_made(least: int = MUCH) -> None:
    """Collect all cycles if so many objects were made in bulk work since that was done last."""
    global _made  # noqa: PLW0603 - the collector is one, too
    if _made >= least and gc.isenabled():
        _made = 0
        gc.collect()
