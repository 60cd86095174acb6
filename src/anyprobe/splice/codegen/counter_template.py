"""The commonest patches by the thousand: one counter, or the call that begins to time a function, before instructions
after which control goes on.

The first such patch of a kind is written by ``emit`` and becomes the template of the others, which differ in their
counter or record, in the displaced copies, and in where they lie. Made by filling in, a patch costs a tenth.
"""  # noqa: D205 - one sentence

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from anyprobe.isa.decode import Flow
from anyprobe.isa.lines import content_of, displaced, shape_of
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode, PatchWriter
from anyprobe.splice.emitted import EmittedPatch
from anyprobe.splice.memory.places import CopiedPlaces
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy, WantKind


@dataclass(frozen=True, slots=True)
class _Template:
    code: bytes
    arguments: tuple[int, ...]
    """Where the offset of the counter or record stands."""
    outward: tuple[tuple[int, int], ...]
    """(place, absolute target) of displacements that depend on where the patch lies."""
    back_at: int
    """Where the displacement of the jump back stands."""
    told: tuple[int, ...] = ()
    """Where it is said which instruction of which function it is, for a handler that asks."""


@dataclass(frozen=True, slots=True)
class _Front:
    """What patches that do the same before the displaced copies have in common."""

    key: "FrontKey"
    displaced_at: int
    by_size: dict[int, _Template]
    """By how many bytes are displaced."""


FrontKey = tuple[ActionKind, int, Clobbers]
"""What is done, the gate of the bank by which it is done, or the handler's routine, and what it may overwrite."""


def front_key(action: Action, clobbers_of: Callable[[], Clobbers]) -> FrontKey:
    """Return what tells the patches of one action from others; what begins a call overwrites nothing."""
    if action.kind is ActionKind.HANDLER:
        return action.kind, action.bank.handler, _NOTHING
    return action.kind, action.bank.gate, clobbers_of() if action.kind is ActionKind.COUNT else _NOTHING


def is_plain(splice: PlannedSplice, action: Action) -> bool:
    """Return whether a splice's action is a plain one before all that is displaced, and is all there is.

    That is a count, the beginning of a call, or the call of a handler that is told nothing but the place.
    """
    counts = action.kind is ActionKind.COUNT or (action.kind is ActionKind.ENTER and not action.bank.stackless)
    if action.kind is ActionKind.HANDLER:
        told = action.takes_target or action.moves_stack or action.looks_for_room or action.inline is not None
        counts = not told and not action.bank.per_processor and action.bank.processes is None
    return counts and _is_alone(splice, action) and splice.strategy is not Strategy.RETARGET


def is_plain_branch(splice: PlannedSplice, action: Action) -> bool:
    """Return whether a jump or call leads into the patch by itself, and a counter there is all there is."""
    retargeted = splice.strategy is Strategy.RETARGET and splice.insns[0].flow in (Flow.JUMP, Flow.CALL)
    return retargeted and action.kind is ActionKind.COUNT and _is_alone(splice, action)


def _is_alone(splice: PlannedSplice, action: Action) -> bool:
    want = splice.wants[0]
    if len(splice.wants) != 1 or want.conditional or want.block or want.after:
        return False
    return action.bank.slot is not None and want.address == splice.start


class CounterTemplates:
    """The templates of one code region."""

    def __init__(self) -> None:
        """Start with none."""
        self._fronts: dict[FrontKey, _Front] = {}

    def fill(
        self, splice: PlannedSplice, address: int, bias: int, action: Action, clobbers_of: Callable[[], Clobbers],
        after: Mapping[int, int] = MappingProxyType({}),
    ) -> EmittedPatch | None:  # fmt: skip
        """Return the splice's patch at ``address``; ``None`` where it is not of the simple kind.

        ``after`` is as for ``emit_patch``; a branch that does not go where it says is not simple.
        """
        if not is_plain(splice, action) or not shape_of(splice.insns):
            return None
        return self.filled(
            splice, address, bias, front_key(action, clobbers_of), action.bank, action.offset, after,
            (action.ip, action.function),
        )  # fmt: skip

    def filled(
        self, splice: PlannedSplice, address: int, bias: int, key: FrontKey, bank: BankCode, offset: int,
        after: Mapping[int, int] = MappingProxyType({}), told: tuple[int, int] = (0, 0),
    ) -> EmittedPatch | None:  # fmt: skip
        """Return the patch of a splice of the simple kind, for an ``offset`` in the blocks of a bank.

        ``told``: the instruction and the function that a handler asks for, 0 where it does not.

        Precondition: what it displaces has a shape.
        """
        want, insns = splice.wants[0], splice.insns
        start, shape, content = want.address + bias, shape_of(insns), content_of(insns)
        if told[1] and not all(abs(each - address) < _NEAR for each in told):
            return None
        front = self._fronts.get(key) or self._front(address, bank, key, told)
        at = front.displaced_at
        made = displaced(content, shape, start, address + at)
        if made is None or (made.targets and not _leave(splice, bias, after, made.targets)):
            return None
        copy, size = made.code, len(made.code)
        template = front.by_size.get(size) or self._template(address, bank, front, size, told)
        code = bytearray(template.code)
        code[at : at + size] = copy
        for place in template.arguments:
            _I32.pack_into(code, place, offset)
        for place, target in (*template.outward, *zip(template.told, told, strict=False)):
            _I32.pack_into(code, place, target - address - place - 4)
        _I32.pack_into(code, template.back_at, start + len(content) - address - template.back_at - 4)
        starts, copies = CopiedPlaces(shape, start, address + at, address), CopiedPlaces(shape, start, address + at)
        entered = address + at if want.kind is WantKind.ENTRY else address
        return EmittedPatch(address, bytes(code), starts, copies, entered, front.key)

    def _front(self, address: int, bank: BankCode, key: FrontKey, told: tuple[int, int]) -> _Front:
        writer = PatchWriter(address)
        writer.action(Action(key[0], 0, bank, *told), key[2])
        front = self._fronts[key] = _Front(key, len(writer.out), {})
        return front

    def _template(self, address: int, bank: BankCode, front: _Front, size: int, told: tuple[int, int]) -> _Template:
        template = front.by_size[size] = _make(address, bank, front.key, size, told)
        return template


def _leave(splice: PlannedSplice, bias: int, after: Mapping[int, int], targets: Sequence[int]) -> bool:
    """Return whether conditional jumps of the displaced instructions lead to what is no head of a splice."""
    here = (splice.head + bias, splice.head + bias - 4)
    return not any(target in after or target in here for target in targets)


_I32 = struct.Struct("<i")
_NEAR = (1 << 31) - 4096
_NOTHING = Clobbers()


def _make(address: int, bank: BankCode, key: FrontKey, size: int, told: tuple[int, int]) -> _Template:
    """Write the patch once, with nothing displaced, and note what depends on place and counter."""
    writer = PatchWriter(address)
    writer.action(Action(key[0], 0, bank, *told), key[2])
    places = tuple(place for place, _ in writer.displacements[-2:]) if told[1] else ()
    writer.raw(bytes(size))
    writer.relative("jmp back", writer.here)
    back_at = len(writer.out) - 4
    code = writer.finish()
    outward = tuple(
        (place, target)
        for place, target in writer.displacements
        if not address <= target <= address + len(code) and place not in (back_at, *places)
    )
    return _Template(code, tuple(writer.arguments), outward, back_at, places)
