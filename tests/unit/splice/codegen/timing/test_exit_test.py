"""What decides in front of an indirect jump whether it leaves its function, read back as assembly."""

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa import disassemble
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.emit import ActionSource, emit_patch, estimate
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode
from anyprobe.splice.codegen.routines import Routines
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy, Want, WantKind

LINK, BIAS, PATCH = 0x1000, 0x500000, 0x600000
BANK = BankCode(slot=0x208, gate=0x610000, near=0, routines=Routines(0x620000, 0x620100, 0x620200, 0x620300))
INSIDE = ((0xF00, 0x1100),)
SAVE = ["push rax", "lahf", "seto al", "push rax"]
ACTION = ["lea rsp, [rsp-0x80]", "push 0x1000", "call 0x620300", "lea rsp, [rsp+0x88]"]


def restore(scratch):
    return ["pop rax", "add al, 0x7f", "sahf", "pop rax", f"pop {scratch}", "lea rsp, [rsp+0x80]"]


def patch_of(code, inside=INSIDE, wants=1):
    insns = tuple(decode_range(bytes.fromhex(code), LINK))
    made = [Want(insns[-1].address, WantKind.EXIT, True, inside=inside) for _ in range(wants)]
    splice = PlannedSplice(Strategy.JUMP, LINK, insns, made, 5, LINK)
    source = ActionSource(lambda _: (Action(ActionKind.LEAVE_TAIL, 0x1000, BANK),), lambda _: Clobbers())
    patch = emit_patch(splice, PATCH, BIAS, source, {})
    if not isinstance(patch, Refusal):
        assert len(patch.code) <= estimate(splice)
    return patch


def lines_of(patch):
    return [(address, text) for address, _, text in disassemble.format(patch.code, PATCH)]


def test_all_of_it():
    patch = patch_of("ff e0")  # jmp rax
    lines = lines_of(patch)
    texts = [text for _, text in lines]
    low = INSIDE[0][0] + BIAS
    compare = [f"lea rax, [{low:#x}]", "sub rax, rcx", "neg rax", "cmp rax, 0x200"]
    head = ["lea rsp, [rsp-0x80]", "push rcx", "mov rcx, rax", *SAVE, *compare]
    assert texts[: len(head)] == head
    leaves = [*restore("rcx"), *ACTION, "jmp rax"]
    assert texts[len(head) + 1 : len(head) + 1 + len(leaves)] == leaves
    (displaced,) = [address for address, text in lines if text == "jmp rax"]
    assert patch.copies == ((LINK + BIAS, displaced),)
    stays = lines[len(head) + 1 + len(leaves) :]
    assert [text for _, text in stays] == [*restore("rcx"), f"jmp {displaced:#x}"]
    assert texts[len(head)] == f"jb {stays[0][0]:#x}"


@pytest.mark.parametrize(
    ("code", "load"),
    [
        ("ff e1", "mov rdx, rcx"),
        ("41 ff e4", "mov rcx, r12"),
        ("ff 64 ca 10", "mov rsi, [rdx+rcx*8+0x10]"),  # jmp [rdx+rcx*8+0x10]
        ("41 ff 27", "mov rcx, [r15]"),
        ("ff 64 24 f0", "mov rcx, [rsp+0x78]"),  # jmp [rsp-0x10]
        ("ff 25 00 01 00 00", f"mov rcx, [{LINK + BIAS + 6 + 0x100:#x}]"),
        ("ff 24 c5 00 20 40 00", "mov rcx, [rax*8+0x402000]"),
        ("64 ff 24 25 28 00 00 00", "mov rcx, fs:[0x28]"),
        ("67 ff 20", "mov rcx, [eax]"),
    ],
)
def test_the_target_is_what_the_jump_will_read(code, load):
    texts = [text for _, text in lines_of(patch_of(code))]
    assert texts[2] == load
    scratch = load.split()[1].rstrip(",")
    assert texts[1] == f"push {scratch}"
    assert texts[8] == f"sub rax, {scratch}"


def test_several_parts():
    patch = patch_of("ff e0", inside=((0xF00, 0x1100), (0x2000, 0x2040)))
    texts = [text for _, text in lines_of(patch)]
    assert [text for text in texts if text.startswith("cmp")] == ["cmp rax, 0x200", "cmp rax, 0x40"]
    assert len([text for text in texts if text.startswith("jb")]) == 2


def test_two_probes_decide_once():
    texts = [text for _, text in lines_of(patch_of("ff e0", wants=2))]
    assert texts.count("cmp rax, 0x200") == 1
    assert texts.count("call 0x620300") == 2


def test_what_stands_in_front_runs_first():
    texts = [text for _, text in lines_of(patch_of("48 89 d8 ff e0"))]  # mov rax, rbx; jmp rax
    assert texts[:4] == ["mov rax, rbx", "lea rsp, [rsp-0x80]", "push rcx", "mov rcx, rax"]


@pytest.mark.parametrize("code", ["ff e4", "67 ff 24 24"], ids=["jmp rsp", "jmp [esp]"])
def test_what_cannot_be_read_in_front(code):
    assert patch_of(code).reason is Reason.NO_DISPLACED_FORM
