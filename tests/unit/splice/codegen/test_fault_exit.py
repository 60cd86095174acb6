"""Where faults land, the handler in front of default actions, and another stack pointer: checked by disassembly."""

import pytest

from anyprobe.isa import disassemble
from anyprobe.isa.assemble import Assembler
from anyprobe.isa.decode import decode_range
from anyprobe.isa.encode import machine_code
from anyprobe.splice.codegen.fault_exit import (
    ENTRY_BYTES,
    LANDING_ESTIMATE,
    can_land,
    check_landing,
    with_landings,
    write_landing,
)
from anyprobe.splice.codegen.handlers import stack_move
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode, PatchWriter, UndisplaceableError
from anyprobe.splice.emitted import EmittedPatch
from anyprobe.splice.translate.routine import LAST_TRAP
from anyprobe.splice.translate.steps import Op
from anyprobe.splice.userspace.fault_handler import FAULT_HANDLER_BYTES, assemble_fault_handler
from anyprobe.splice.userspace.trap_handler import SIG_DFL, SIG_IGN, SignalAction

ADDRESS, HANDLER, VIEW = 0x1000, 0x9000, 0x8000


def one(code, address=0x4000):
    return next(iter(decode_range(bytes.fromhex(code), address)))


def texts(code, address):
    return [text for _, _, text in disassemble.format(code, address)]


def test_a_landing():
    writer = PatchWriter(ADDRESS)
    writer.raw(b"\x48\x8b\x00")  # mov rax, [rax]
    action = Action(ActionKind.FAULT, 0x48, BankCode(None, 0, 0, None, handler=HANDLER))
    landing = write_landing(writer, one("488b00"), ADDRESS, ADDRESS + 3, [action, action])
    assert landing.copy == ADDRESS
    assert landing.entries == ADDRESS + 16
    code = bytes(writer.out)
    common = landing.entries + ENTRY_BYTES * (LAST_TRAP + 1)
    for number in range(LAST_TRAP + 1):
        at = landing.entries + ENTRY_BYTES * number
        entry = texts(code[at - ADDRESS :][:12], at)
        assert entry == ["lea rsp, [rsp-0x80]", f"push {number:#x}", f"jmp {common:#x}"]
    call = ["push 0x48", f"call {HANDLER:#x}", "lea rsp, [rsp+0x8]"]
    rest = [*call, *call, "lea rsp, [rsp+0x88]", "mov rax, [rax]", f"jmp {ADDRESS + 3:#x}"]
    assert texts(code[common - ADDRESS :], common) == rest
    assert code[landing.again - ADDRESS :][:3] == b"\x48\x8b\x00"
    assert len(code) - 16 < LANDING_ESTIMATE


def test_recipes_lead_to_a_landing():
    writer = PatchWriter(ADDRESS)
    writer.raw(b"\x48\x8b\x00")
    landing = write_landing(writer, one("488b00"), ADDRESS, ADDRESS + 3, [])
    patch = EmittedPatch(ADDRESS, bytes(writer.out), (), (), ADDRESS, landings=(landing,))
    found = with_landings({}, patch)
    assert len(found) == LAST_TRAP + 3
    assert {recipe[0].op for at, recipe in found.items() if at != landing.again - ADDRESS} == {Op.LAND}
    assert {recipe[0].b for recipe in found.values() if recipe[0].op is Op.LAND} == {landing.entries - ADDRESS}
    assert [step.op for step in found[landing.again - ADDRESS]] == [Op.IF_SYNCHRONOUS, Op.DONE, Op.SITE, Op.DONE]


@pytest.mark.parametrize(
    ("code", "lands"), [("488b00", True), ("0f0b", True), ("ffd0", False), ("c3", False), ("cc", False)]
)
def test_what_branches_does_not_land(code, lands):
    assert can_land(one(code)) is lands
    if not lands:
        with pytest.raises(UndisplaceableError):
            check_landing(one(code), first=True)
    with pytest.raises(UndisplaceableError):
        check_landing(one(code), first=False)


@pytest.mark.parametrize("old", [SIG_DFL, SIG_IGN])
def test_the_handler_in_front_of_an_action(old):
    handler = assemble_fault_handler(ADDRESS, VIEW, SignalAction(old, 0, 0, 0))
    assert len(handler.code) == FAULT_HANDLER_BYTES
    shown = texts(handler.code[: handler.restorer + 9 - ADDRESS], ADDRESS)
    assert shown[:4] == ["lea rsp, [rsp-0x80]", "push 0x0", f"call {VIEW:#x}", "lea rsp, [rsp+0x88]"]
    assert ("cmp dword ptr [rsi+0x8], 0x0" in shown) is (old == SIG_IGN)
    assert shown[-2:] == ["mov rax, 0xf", "syscall"]
    assert handler.code[-SignalAction.SIZE :] == bytes(SignalAction.SIZE)
    assert f"lea rsi, [{ADDRESS + FAULT_HANDLER_BYTES - SignalAction.SIZE:#x}]" in shown
    assert handler.action().mask == (1 << 64) - 1


def test_another_stack_pointer():
    asm = Assembler()
    stack_move.emit_frame(asm, "rsp", 0x60, 136)
    shown = [text.replace("qword ptr ", "") for text in texts(asm.finish(ADDRESS), ADDRESS)]
    assert shown == [
        "mov rax, [rsp+0x60]", "mov [rsp+0x40], rax", "mov [rsp+0x48], 0x33", "mov [rsp+0x60], 0x2b",
        "sub [rsp+0x58], 0x88",
    ]  # fmt: skip
    assert texts(machine_code(stack_move.ROOM), 0) == ["lea rsp, [rsp-0x20]"]
    assert texts(machine_code(stack_move.RETURN), 0) == ["lea rsp, [rsp+0x20]", "ret"]
    assert texts(machine_code(stack_move.LEAVE), 0) == ["pushfq", "pop qword ptr [rsp+0x10]", "iretq"]
