"""What is known of timed functions by which calls made which others."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyprobe.data.readers.reader import RecordValues


@dataclass(frozen=True, slots=True)
class NestedTiming:
    """What is known of one function's calls by which timed calls they made, and which made them."""

    self_ns: float = 0.0
    """The time in the function itself: without what other timed functions took that it called."""
    outermost_ns: float = 0.0
    """The time of its calls, recursion counted once: without calls that were made within others of the function."""
    root_ns: float = 0.0
    """The time of calls that no timed function made, without what they waited for while the thread was on other stacks.
    Its sum over all functions, and what is in none, is that of ``self_ns``."""

    @classmethod
    def of(cls, record: "RecordValues", ns_per_tick: float) -> "NestedTiming":
        """Return what a timing record holds."""
        own, outermost, roots = (ticks * ns_per_tick for ticks in (record.own, record.outermost, record.roots))
        return cls(own, outermost, roots)

    def as_rest(self) -> dict[str, Any]:
        """Return the JSON object of time that is in no row."""
        return {"self_ns": round(self.self_ns), "root_ns": round(self.root_ns)}

    def __add__(self, other: "NestedTiming") -> "NestedTiming":
        """Return the sum with another one."""
        return self.plus(other)

    def plus(self, other: "NestedTiming", sign: int = 1) -> "NestedTiming":
        """Return the sum with another one, or what is more than that (-1)."""
        return NestedTiming(
            self.self_ns + sign * other.self_ns,
            self.outermost_ns + sign * other.outermost_ns,
            self.root_ns + sign * other.root_ns,
        )
