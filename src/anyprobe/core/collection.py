"""Python's cyclic garbage collector, kept out of bulk work: it would walk the same growing heap again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no cycles within a ``with`` block (reference counting goes on).

    What was made in it counts as long-lived afterwards: the first collection behind it would walk it all, and a full
    one will come to it anyway.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # else it would thaw what somebody has frozen
            gc.freeze()
            gc.unfreeze()
        gc.enable()
