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
    together: addresses in order, each with its strategy or the text of its refusal.
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
