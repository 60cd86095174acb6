"""What an instruction would have overwritten, had its fault not been skipped."""

from anyprobe.binary.decoding.instruction_masks import FLAGS
from anyprobe.binary.liveness.skipped_kills import SkippedKills
from anyprobe.isa.registers import mask_of
from support.module_under_test import Module, function

EVERYTHING = 0xFFFF | FLAGS
BODY = """mov rax, [rdi]
    lea rcx, [rdi + 8]
    mov edx, 5
    div rsi
    mov r8, [rsp + 8]
    xor r9d, r9d
    jmp .Lnext
.Lnext: mov r10, [rdi + rax]
    mov rax, 1
    ret"""


def test_only_what_faulting_instructions_overwrite_is_in_doubt(build):
    code = Module.assembled(build, function("looking", BODY))["looking"]
    kills = SkippedKills(code)
    at = code.addresses
    rax, rdx, r9, r10 = (mask_of((name,)) for name in ("rax", "rdx", "r9", "r10"))
    assert kills.doubtful(at[9], rdx | rax | r10) == rdx | rax | r10  # all of these are loaded, or divided, somewhere
    assert kills.doubtful(at[9], mask_of(("rcx", "r8", "r9"))) == 0  # these only by what cannot fault
    assert kills.doubtful(at[2], rdx) == 0  # overwritten for certain by the first that does
    assert kills.doubtful(at[3], rdx | rax) == rdx | rax  # the first that overwrites them may fault
    assert kills.doubtful(at[8], rax | r9) == 0
    assert kills.doubtful(at[7], rax | r10) == r10
    assert kills.doubtful(at[6], rax) == rax  # behind a jump nothing is certain
    assert kills.doubtful(at[0] + 1, rdx) == rdx  # where no instruction begins, nothing is known
    assert SkippedKills(code).doubtful(at[0], EVERYTHING) & FLAGS == FLAGS & kills.doubtful(at[0], EVERYTHING)
