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
    self_off_ns: float | None = None
    """How long threads were not on processors in the function itself, where times are those on processors."""

    @classmethod
    def of(cls, record: "RecordValues", ns_per_tick: float, *, on_processors: bool = False) -> "NestedTiming":
        """Return what a timing record holds; ``on_processors``: times are those on processors."""
        own, outermost, roots = (ticks * ns_per_tick for ticks in (record.own, record.outermost, record.roots))
        return cls(own, outermost, roots, record.off * ns_per_tick if on_processors else None)

    def as_rest(self) -> dict[str, Any]:
        """Return the JSON object of time that is in no row."""
        return {"self_ns": round(self.self_ns), "root_ns": round(self.root_ns)}

    def __add__(self, other: "NestedTiming") -> "NestedTiming":
        """Return the sum with another one."""
        return self.plus(other)

    def plus(self, other: "NestedTiming", sign: int = 1) -> "NestedTiming":
        """Return the sum with another one, or what is more than that (-1)."""
        known = [each for each in (self.self_off_ns, other.self_off_ns) if each is not None]
        return NestedTiming(
            self.self_ns + sign * other.self_ns,
            self.outermost_ns + sign * other.outermost_ns,
            self.root_ns + sign * other.root_ns,
            (self.self_off_ns or 0.0) + sign * (other.self_off_ns or 0.0) if known else None,
        )
