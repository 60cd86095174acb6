"""USDT markers of one's own: in Python programs, and in C and C++ by a header that is made from a DTrace provider file.

In: names and types of markers. Out: shared objects with notes, loaded into this process, and C headers. Must not know a
session: what tools do with the markers is theirs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyprobe.usdt.provider import FireProbe, Provider

__all__ = ["FireProbe", "Provider"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the module attribute protocol
    """Import the provider when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from anyprobe.usdt import provider

    return getattr(provider, name)
