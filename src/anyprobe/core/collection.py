"""Python's cyclic garbage collector, kept out of bulk work: it would walk the same growing heap again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no cycles within a ``with`` block (reference counting goes on)."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
