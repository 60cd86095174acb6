"""Code memory within reach of some modules: patches, the gate page, near counters, and the shared routines."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from anyprobe.core.address import PAGE, page_ceil
from anyprobe.core.errors import InternalError
from anyprobe.data.layouts.layout import CLOSED, BankLayout
from anyprobe.data.snapshots.costs import NO_COSTS, Costs
from anyprobe.isa.assemble import u64
from anyprobe.journal.records import MappingUse, Record
from anyprobe.splice.codegen.counter_template import CounterTemplates
from anyprobe.splice.codegen.emit import PATCH_ALIGNMENT
from anyprobe.splice.codegen.patch import RET, Action, ActionKind, BankCode, PatchWriter
from anyprobe.splice.codegen.routines import RoutineFacts, Routines, assemble_routines
from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.splice.memory.space import REACH
from anyprobe.splice.translate.progress import Stretch

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from anyprobe.binary.liveness.certain_accesses import Access
    from anyprobe.data.readers.reader import EndedCounts
    from anyprobe.splice.codegen.handlers.facts import HandlerFacts
    from anyprobe.splice.codegen.handlers.guards import Guard
    from anyprobe.splice.codegen.handlers.inline import Inline
    from anyprobe.splice.codegen.timing.trampoline import Trampolines

ROUTINE_BYTES = 24576
"""Room reserved for the routines of one bank and the signal view's."""
BANK_ROUTINE_BYTES = 18432
"""Upper bound of what the routines of one bank take alone."""
_VIEW_LEAST, _VIEW_SHARE, _VIEW_SHARE_OF_MORE, _MORE = 16 * PAGE, 3, 9, 6 << 20
"""What the signal view may have of a code piece: so many bytes, and one part of so many; of what is more than a few
megabytes a smaller one, since patches by the thousand have much in common. Used only where needed."""

_LEAST_CODE = 1 << 16
VIEW_BYTES, _VIEW_MOST, _VIEW_PART = 600, 6 << 20, 10
"""For how much the signal view has room beside its share of the code, for each want of a change: a few copies of
instructions may take that much each; thousands share most of it, and take a part of what is beyond ``_VIEW_MOST``."""


def after_code(end: int) -> int:
    """Return where code may begin after other code that ends at an address."""
    return (end + PATCH_ALIGNMENT - 1) & -PATCH_ALIGNMENT


@dataclass(frozen=True, slots=True)
class Still:
    """A bank as it was at one moment: only its pages with data are there."""

    content: memoryview
    extents: tuple[tuple[int, int], ...]


@dataclass(eq=False)
class SlotBank:
    """A bank of per-thread blocks: the region, its layout, the thread slot and the bit that all block pointers have."""

    arena: Arena
    piece: Piece
    layout: BankLayout
    slot: int
    mask: int
    index: int
    """Which word of every gate page is its gate."""
    clock: int = 0
    """Address of the vdso's ``clock_gettime`` if times are not taken from the TSC."""
    numbered: int = 0
    """Threads that earlier banks have room for: by this one they have numbers beyond, since it numbers them anew."""
    adopted: int = 0
    """Address of the word, wiped at a fork, that says which blocks a fork child has."""
    closed: int = 0
    """Address of the word that says that fork children get none any more."""
    change: int = 0
    """Address of the word that says which return points the text has jumps at, where fork children are timed."""
    dark: int = 0
    """Address of the word that says that the time stamp counter may not be read any more."""
    rate: int = 0
    """Ticks of a nanosecond, times two to the 32, if times are those on processors."""
    open_at_end: dict[int, int] = field(default_factory=dict)
    """Ticks of calls that were running when the process ended, by the offsets of their records."""
    end_is_told: bool = False
    """Whether the process has told when that was, by a call that is seen."""
    hosts_handlers: bool = False
    """Whether handlers are called by it."""
    costs: Costs = NO_COSTS
    """What timing probes cost, which is left out of times."""
    ended: "EndedCounts | None" = None
    """What fork children have counted that have ended, whose memory is for others."""
    still: "Still | None" = None
    """What it held at one moment, where that is to be read."""

    def of_session(self, first: int) -> None:
        """Take note of where the session's first bank is, whose header has what all of its banks obey."""
        self.closed = first + CLOSED

    def facts(self, gate: int, adopt: int = 0) -> RoutineFacts:
        """Return what routines have to know that reach it by a gate; ``adopt``: the routine of that name."""
        return RoutineFacts(
            self.layout, self.piece.address, gate, self.slot, self.clock, self.numbered,
            mask=self.mask, adopted=self.adopted, closed=self.closed, change=self.change, adopt=adopt, costs=self.costs,
            dark=self.dark, rate=self.rate,
        )  # fmt: skip


@dataclass(eq=False)
class GoroutineBank(SlotBank):
    """A bank of the timed calls of Go functions: blocks that goroutines share, and a table of the open calls."""

    table: Piece | None = None
    """The open calls (``data.layouts.goroutines``)."""
    number_at: int = 0
    """Where ``runtime.g`` has the goroutine's number."""


@dataclass(eq=False)
class NearBank:
    """Counters within reach of code, changed by atomic operations: for programs without a thread slot."""

    arena: Arena
    piece: Piece
    layout: BankLayout
    still: "Still | None" = None
    dark: int = 0
    """Address of the word that says that the time stamp counter may not be read any more."""


class Handling(Protocol):
    """What is known of a hook with a handler: where it counts, and what the handler may ask of its place."""

    handler: "HandlerFacts | None"
    offset: int
    ip: int
    function: int


@dataclass(frozen=True, slots=True)
class RoutineCode:
    """The routines of one bank, or the signal view's, as they lie in one code region."""

    address: int
    code: bytes
    stretches: tuple[Stretch, ...]
    finish: int
    """How far after them the copies are that finish what was begun."""
    routines: Routines | None = None
    facts: RoutineFacts | None = None


@dataclass(eq=False)
class CodeRegion:
    """One gate page, near counters (optional) and a code piece, mapped side by side."""

    arena: Arena
    gate: Piece
    code: Piece
    near: NearBank | None
    view_bytes: int = 0
    """What the signal view has of the code piece in any case, besides its share."""
    cursor: int = field(init=False)
    limit: int = field(init=False)
    """End of the code; what is after it is for the signal view."""
    _looks_back: bool = field(default=False, init=False)
    """Whether the cursor is where code lies that may be live."""
    templates: CounterTemplates = field(default_factory=CounterTemplates, init=False)
    view_room: int = field(init=False)
    """How many bytes the signal view has left."""
    _codes: dict[int, BankCode] = field(default_factory=dict, init=False)
    _open: set[int] = field(default_factory=set, init=False)
    blobs: list["RoutineCode"] = field(default_factory=list, init=False)
    """The routines emitted so far."""
    _describable: int = field(init=False)
    """How far code may go for the signal view to have room for it, by what it has needed so far."""
    view: int = field(default=0, init=False)
    """Address of the signal view's routine, once it is there."""
    view_check: int = field(default=0, init=False)
    """Address of the routine that says whether there is anything for it to do."""
    unlisted: "list[Trampolines]" = field(default_factory=list, init=False)
    """Stubs that no journal lists yet."""
    unlisted_copies: list[Record] = field(default_factory=list, init=False)
    """How journals are to list copies of functions that none lists yet."""
    _handlers: "dict[tuple[int, int], tuple[HandlerFacts, int]]" = field(default_factory=dict, init=False)
    """Where handlers are called, by bank and the handler's identity, which is its own while it is kept here."""
    _near_handlers: "dict[int, tuple[HandlerFacts, int]]" = field(default_factory=dict, init=False)
    """Where handlers are called that need no block, by the handler's identity."""
    _chains: "dict[tuple[int, ...], tuple[list[HandlerFacts], int]]" = field(default_factory=dict, init=False)
    """Where several handlers are called at once, by their bank's gate and the handlers' identities."""
    _at_returns: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    """Where handlers are called at replaced return addresses, by bank and counter."""
    _words: dict[bytes, int] = field(default_factory=dict, init=False)
    """Where words are that code reads, by what they hold."""
    _storages: dict[int, int] = field(default_factory=dict, init=False)
    """Where addresses of storages are written."""

    def __post_init__(self) -> None:
        """Start with an empty code piece."""
        self.cursor = self.code.address
        self.view_room = self.view_bytes + _view_bytes(self.code.size - self.view_bytes)
        self.limit = self._describable = self.code.end - self.view_room

    def reaches(self, low: int, high: int) -> bool:
        """Return whether code here reaches every byte of ``[low, high)`` and back."""
        start = min(self.gate.address, self.code.address)
        return max(high - start, self.code.end - low) < REACH

    def room(self, banks: Collection[SlotBank] = ()) -> int:
        """Return how many bytes of code still fit, and can be described where that is needed.

        ``banks``: their routines are to be here, too, which are still to be written for those new to this region.
        """
        missing = sum([bank.index not in self._codes for bank in banks])
        return min(self.limit, self._describable) - self.cursor - BANK_ROUTINE_BYTES * missing

    def described(self, used: int, free: int) -> None:
        """Take note of how many bytes the signal view has used for the code here, and how many it has left."""
        self.view_room = free
        self._describable = self.cursor + free * (self.cursor - self.code.address) // used

    def put(self, code: bytes) -> int:
        """Write code at the cursor and return its address."""
        address = self.cursor
        if self._looks_back:
            raise InternalError(f"code that may be live lies at {address:#x}: none can be written over it")
        if address + len(code) > self.limit:
            raise InternalError("a patch does not fit its code region")
        self.arena.write(self.code, address, code)
        self.cursor = after_code(address + len(code))
        return address

    @contextmanager
    def looking_back(self, address: int) -> Iterator[None]:
        """Have the cursor where code lies already, to compare it with what would be written; meanwhile none can be."""
        cursor, self.cursor, self._looks_back = self.cursor, address, True
        try:
            yield
        finally:
            self.cursor, self._looks_back = cursor, False

    def slot_code(self, bank: SlotBank) -> BankCode:
        """Return how code here reaches a bank, emitting its routines the first time."""
        code = self._codes.get(bank.index)
        if code is None and isinstance(bank, GoroutineBank):
            code = self._codes[bank.index] = self._goroutine_code(bank)
        if code is None:
            gate = self.gate.address + 8 * bank.index
            facts = bank.facts(gate)
            content, routines, _ = assemble_routines(facts, self.cursor)
            self.blobs.append(
                RoutineCode(self.put(content), content, routines.stretches, routines.finish, routines, facts)
            )
            code = BankCode(bank.slot, gate, facts.shared, routines)
            self._codes[bank.index] = code
        return code

    def _goroutine_code(self, bank: GoroutineBank) -> BankCode:
        from anyprobe.splice.codegen.timing.goroutine_routines import GoroutineFacts, assemble_goroutine_routines

        assert bank.table is not None
        gate, shared = self.gate.address + 8 * bank.index, bank.piece.address + bank.layout.shared_offset
        facts = GoroutineFacts(bank.layout, shared, bank.table.address, gate, bank.number_at, bank.dark)
        content, routines = assemble_goroutine_routines(facts, self.cursor)
        self.put(content)
        return BankCode(None, gate, 0, routines, stackless=True)

    def view_code(self, root: int) -> BankCode:
        """Return how code here reaches the signal view's routine, emitting it the first time; ``root``: its tables."""
        from anyprobe.splice.translate.routine import assemble_view
        from anyprobe.splice.translate.view_check import assemble_check

        if not self.view:
            content, stretches, finish, _ = assemble_view(self.cursor, root)
            self.view = self.put(content)
            self.blobs.append(RoutineCode(self.view, content, stretches, finish))
            content, stretches = assemble_check(self.cursor, root)
            self.view_check = self.put(content)
            self.blobs.append(RoutineCode(self.view_check, content, stretches, 0))
        return BankCode(None, 0, 0, None, view=self.view, view_check=self.view_check)

    def replacing_code(self, bank: SlotBank) -> BankCode:
        """Return how code here reaches a bank and replaces return addresses; emit what that needs once."""
        from anyprobe.splice.codegen.timing.trampoline import assemble_trampolines

        code = self.slot_code(bank)
        if code.trampolines is None and code.routines is not None:
            facts = bank.facts(code.gate, code.routines.adopt)
            content, trampolines, _ = assemble_trampolines(facts, code.routines, self.cursor)
            self.put(content)
            self.unlisted.append(trampolines)
            code = self._codes[bank.index] = replace(code, trampolines=trampolines)
        return code

    def handler_code(self, bank: SlotBank, handler: "HandlerFacts") -> BankCode:
        """Return how code here calls a handler, emitting it the first time."""
        from anyprobe.splice.codegen.handlers.alone import assemble_handler_call

        code = self.slot_code(bank)
        _, address = self._handlers.get((bank.index, id(handler)), (handler, 0))
        if not address:
            facts = bank.facts(code.gate, code.routines.adopt if code.routines is not None else 0)
            content, address, _ = assemble_handler_call(facts, handler, self.cursor)
            self.put(content)
            self._handlers[bank.index, id(handler)] = handler, address
        return replace(code, handler=address)

    def near_handler_code(self, bank: NearBank, handler: "HandlerFacts") -> BankCode:
        """Return how code here calls a handler that needs no block of the thread's, emitting it the first time."""
        from anyprobe.splice.codegen.handlers.alone import assemble_handler_call

        _, address = self._near_handlers.get(id(handler), (handler, 0))
        if not address:
            facts = RoutineFacts(bank.layout, bank.piece.address, 0, 0, near=bank.piece.address, dark=bank.dark)
            content, address, _ = assemble_handler_call(facts, handler, self.cursor)
            self.put(content)
            self._near_handlers[id(handler)] = handler, address
        return BankCode(None, 0, bank.piece.address, None, handler=address)

    def chain(self, actions: Sequence[Action]) -> int | None:
        """Return the routine that calls the handlers of some actions of one bank, if it is written here."""
        return self._chains.get(_chain_key(actions), (0, None))[1]

    def write_chain(self, actions: Sequence[Action]) -> None:
        """Write that routine, if it is not there yet."""
        from anyprobe.splice.codegen.handlers.chain import assemble_handler_chain

        if self.chain(actions) is not None:
            return
        handlers = [action.handler for action in actions if action.handler is not None]
        bank = actions[0].bank
        facts = next(blob.facts for blob in self.blobs if blob.routines is bank.routines and blob.facts is not None)
        facts = replace(facts, adopt=bank.routines.adopt if bank.routines is not None else 0)
        content, address, _ = assemble_handler_chain(facts, handlers, self.cursor)
        self.put(content)
        self._chains[_chain_key(actions)] = handlers, address

    def handling_code(self, bank: SlotBank, hook: "Handling") -> BankCode:
        """Return how code here has a handler run at replaced return addresses, emitting what that needs once."""
        trampolines = self.replacing_code(bank).trampolines
        assert hook.handler is not None
        code = replace(self.handler_code(bank, hook.handler), trampolines=trampolines)
        address = self._at_returns.get((bank.index, hook.offset))
        if address is None:
            place = (hook.ip, hook.function) if hook.handler.asks_place else (0, 0)
            writer = PatchWriter(self.cursor)
            writer.handle_return(Action(ActionKind.HANDLER, hook.offset, code, *place))
            address = self._at_returns[bank.index, hook.offset] = self.put(writer.finish())
        return replace(code, at_return=address)

    def silence(self, bank: SlotBank, offset: int) -> None:
        """Have calls whose return address is still replaced come back without a handler from now on."""
        address = self._at_returns.get((bank.index, offset))
        if address is not None:
            self.arena.write(self.code, address, RET)  # one byte, in the place of ``lea rsp, [rsp-128]``

    def inline(
        self, bank: SlotBank, handler: "HandlerFacts", accesses: "Callable[[], AbstractSet[Access]]", function: int = 0
    ) -> "Inline | Guard | None":
        """Return what patches of a function do here in the stead of a handler, if it is trivial, or before it.

        ``accesses`` says what the program accesses there in any case.
        """
        from anyprobe.core.code import RecordedEnd
        from anyprobe.splice.codegen.handlers.inline import Inline, sources_of

        if handler.code.only_if:
            from anyprobe.splice.codegen.handlers.guards import guard_of

            guard = guard_of(handler.code)
            return guard and guard.where(accesses() if guard.reads else frozenset())
        sources, update = sources_of(handler.code), handler.code.update
        if sources is None or update is None or bank.numbered + bank.layout.blocks >= update.rows:
            return None
        storage = handler.storages[update.storage]
        if storage not in self._storages:
            self._storages[storage] = self.put(u64(storage))
        number: int | None = 0
        if isinstance(update, RecordedEnd):
            from anyprobe.splice.codegen.handlers.recorded import numbered

            number = numbered(update, function)
        return None if number is None else Inline(update, sources, self._storages[storage], number, bank.dark)

    def shared_words(self, content: bytes) -> int:
        """Return where some bytes are within reach of the code, which are written once."""
        if content not in self._words:
            self._words[content] = self.put(content)
        return self._words[content]

    def needs_gate(self, bank: SlotBank) -> bool:
        """Return whether code here uses the bank and its gate word has not been written yet."""
        return bank.index in self._codes and bank.index not in self._open

    def gate_opened(self, bank: SlotBank) -> None:
        """Take note that the bank's gate word is written."""
        self._open.add(bank.index)


def _chain_key(actions: Sequence[Action]) -> tuple[int, ...]:
    return actions[0].bank.gate, *(id(action.handler) for action in actions)


@dataclass(eq=False)
class Cluster:
    """Modules that will share a new code region."""

    low: int
    high: int
    code_bytes: int = 0
    largest: int = 0
    """Bytes of code of the largest function."""
    near: BankLayout | None = None
    modules: list[str] = field(default_factory=list)
    """Their names."""
    view_bytes: int = 0
    """What the signal view may need beside its share."""
    routine_bytes: int = 0
    """What the routines of earlier banks take, which each code region may come to need."""
    homes: list[list[Piece]] = field(default_factory=list)
    """The pieces of each code region: one, or several where the address space is cut up."""

    def view_in_each(self, count: int) -> int:
        """Return how much of it each of ``count`` code regions has."""
        return page_ceil(-(-view_room(self.view_bytes) // count))

    def sizes(self, count: int) -> list[int]:
        """Return the bytes of ``count`` code regions that hold everything, however functions are spread over them."""
        routines = self.routine_bytes + 4 * ROUTINE_BYTES
        code = -(-self.code_bytes // count) + (self.largest if count > 1 else 0) + routines
        size = PAGE + code_piece_bytes(max(_LEAST_CODE, code)) + self.view_in_each(count)
        return [size + (self.near.stride if self.near else 0), *([size] * (count - 1))]


def view_room(bytes_wanted: int) -> int:
    """Return how much room the signal view has beside its share of the code."""
    return min(bytes_wanted, _VIEW_MOST) + max(bytes_wanted - _VIEW_MOST, 0) // _VIEW_PART


def code_piece_bytes(code_bytes: int) -> int:
    """Return the size of the piece that has room for so much code, and for what the signal view says of it."""
    least = code_bytes + _VIEW_LEAST + 2 * PAGE
    few = page_ceil(least * _VIEW_SHARE // (_VIEW_SHARE - 1))
    if few <= _MORE:
        return few
    rest = least - (_MORE - _MORE // _VIEW_SHARE)
    return page_ceil(_MORE + rest * _VIEW_SHARE_OF_MORE // (_VIEW_SHARE_OF_MORE - 1))


def _view_bytes(piece_bytes: int) -> int:
    few = min(piece_bytes, _MORE)
    share = few // _VIEW_SHARE + (piece_bytes - few) // _VIEW_SHARE_OF_MORE
    return min(page_ceil(share) + _VIEW_LEAST, piece_bytes // 2)


def code_region_pieces(place: int, code_bytes: int, near: BankLayout | None, offset: int) -> list[Piece]:
    """Return the pieces of a code region at ``place``; ``offset`` is where its memfd part begins.

    The gate is not in the memfd, but has a page of it: it is mapped over the first page of the mapping after it.
    """
    pieces = [Piece(MappingUse.GATE, place, PAGE, offset)]
    address, offset = place + PAGE, offset + PAGE
    if near is not None:
        pieces.append(Piece(MappingUse.COUNTERS, address, near.stride, offset))
        address, offset = address + near.stride, offset + near.stride
    pieces.append(Piece(MappingUse.CODE, address, page_ceil(code_bytes), offset))
    return pieces
