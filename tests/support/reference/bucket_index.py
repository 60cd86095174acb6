"""In which bucket a value is, by the rules of the language; generated code is compared with it."""

from anyprobe.data.layouts import histogram
from anyprobe.data.layouts.buckets import ZERO


def power_index(value: int) -> int:
    """Return the bucket of ``quantize``."""
    if value == 0:
        return ZERO
    return ZERO + value.bit_length() if value > 0 else ZERO - (-value).bit_length()


def linear_index(value: int, lower: int, step: int, levels: int) -> int:
    """Return the bucket of ``lquantize``: 0 below ``lower``, ``levels + 1`` from the end of the last step on."""
    if value < lower:
        return 0
    return min((value - lower) // step, levels) + 1


def log_linear_index(value: int) -> int:
    """Return the bucket of ``Hist``."""
    return 0 if value < 0 else 1 + histogram.clamped_index(value)
