"""What ``explain`` and ``list`` know of a site, as immutable values."""

from dataclasses import dataclass

from anyprobe.core.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction, with what it is to the site: IA, DCR, JTPR, none or several."""

    address: int
    bytes: bytes
    text: str
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan or the refusals for one site.

    ``verdicts`` has each strategy with ``chosen``, ``possible`` or the text of its refusal. ``patch`` is the generated
    code as (address, bytes, assembly); its addresses are made up where nothing is placed yet. ``refused`` is why the
    site is not probed at all, whatever the strategy. ``sites`` are all that the spec means in this function, planned
    together: addresses in order, each with its strategy or the text of its refusal. ``timed``: these are both ends of
    the function's calls.
    """

    spec: str
    module: str
    function: str
    address: int
    function_start: int
    disassembly: tuple[Line, ...]
    live_registers: tuple[str, ...]
    dead_registers: tuple[str, ...]
    dead_vectors: tuple[str, ...]
    """Vector registers (``xmm3``: the low 128 bits alone, ``zmm3[128:]``: the rest), masks, ``x87`` for its stack."""
    flags_live: bool
    verdicts: tuple[tuple[str, str], ...]
    patch: tuple[tuple[int, bytes, str], ...] = ()
    notes: tuple[str, ...] = ()
    refused: str | None = None
    sites: tuple[tuple[int, str], ...] = ()
    timed: bool = False
    stack: int = 0
    """Bytes below the stack pointer at the site that a hit takes at most; 0: none of the program's stack."""
    by_goroutine: bool = False
    """Whether the function's calls are timed as those of Go are; not in JSON."""
    in_callers: bool = False
    """Whether its calls end where its callers go on, and none at its exits; not in JSON."""

    @property
    def strategy(self) -> str | None:
        """The strategy for the site, None where it is refused."""
        chosen = (strategy for strategy, verdict in self.verdicts if verdict == "chosen")
        return None if self.refused is not None else next(chosen, None)

    @property
    def summary(self) -> str:
        """What would be done, in one sentence."""
        if self.strategy is None:
            reason, _, detail = (self.refused or "no strategy will do").partition(": ")
            return f"refused: {detail} ({reason})" if detail else f"refused: {reason}"
        way, cost = WAYS.get(self.strategy, (f"by {self.strategy}", "about 1 ns"))
        if self.timed:
            exits = len(self.sites) - 1
            ends = "at its only exit" if exits == 1 else f"at each of its {exits} exits"
            ends = "where its callers go on" if self.in_callers else ends
            cost = GOROUTINE_TIMED_COST if self.by_goroutine else TIMED_COST
            return f"would be timed at its entry, placed {way}, and {ends}, about {cost} a call"
        if len(self.sites) < 2:
            return f"would be placed {way}, {cost} a hit"
        refused = sum(": " in verdict for _, verdict in self.sites)
        rest = f", {refused:,} of all {len(self.sites):,} sites are refused" if refused else ""
        return f"would be placed {way}, {cost} a hit{rest}"


WAYS = {
    "retarget": ("by changing where its branch leads", "about 1 ns"),
    "jump": ("by a 5-byte jump", "about 1 ns"),
    "punned": ("by a 5-byte jump that shares bytes with what follows", "about 1 ns"),
    "short": ("by a 2-byte jump to a springboard nearby", "about 1 ns"),
    "trap": ("by a trap, of one byte", "about 1 µs"),
    "fentry": ("by a call from the function's entry (fentry)", "about 125 instructions"),
    "fexit": ("by a call around the function (fexit)", "about 180 instructions"),
    "kprobe.multi": ("by the kernel's function tracer (kprobe.multi)", "about 250 instructions"),
    "kretprobe.multi": ("by a replaced return address (kretprobe.multi)", "about 400 instructions"),
    "kprobe": ("by a kprobe", "290 to 720 instructions"),
    "kretprobe": ("by a kretprobe", "about 590 instructions"),
}
"""How a site reaches its patch by each strategy, and what a counted hit costs then."""
TIMED_COST, GOROUTINE_TIMED_COST = "30 ns", "25 ns"


@dataclass(frozen=True, slots=True)
class ListedArgument:
    """An argument of a USDT marker: its type, or why it cannot be read, and how the note has it."""

    name: str
    type: str | None
    text: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ListedMarker:
    """What the note of a USDT marker says of one place."""

    provider: str
    name: str
    semaphore: int
    """Run-time address, 0 where the program has no such number."""
    arguments: tuple[ListedArgument, ...]


@dataclass(frozen=True, slots=True)
class ListedSite:
    """A site that could be probed by ``strategy``, or why it could not."""

    spec: str
    module: str
    function: str
    offset: int
    address: int
    strategy: str | None
    refusal: Refusal | None = None
    arguments: tuple[tuple[str, str], ...] | None = None
    """Names and types of the function's parameters, ``None`` where debug information does not say."""
    result: str | None = None
    """The type of its result, ``None`` where that is not said, or where there is none."""
    in_kernel: bool = False
    mechanisms: tuple[str, ...] = ()
    """In the kernel: what can probe it, the first choice first."""
    marker: ListedMarker | None = None
    """The USDT marker that the site is a place of."""
