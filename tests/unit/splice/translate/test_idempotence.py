import pytest

from anyprobe.isa.decode import decode_one
from anyprobe.splice.translate.abstract_state import initial
from anyprobe.splice.translate.idempotence import Replay, replay_after
from support.displaced import encodings, forms
from support.displaced.oracle import judge
from support.displaced.verdicts import differences

TWICE = {"mov rax, rdi": "4889f8", "mov eax, [rdi]": "8b07", "ucomisd xmm0, xmm1": "660f2ec1", "push rax": "50"}
ONCE = {
    "mov [rdi], eax": "8907", "mov [rsp+8], rax": "4889442408", "stmxcsr [rsp]": "0fae1c24",
    "in al, dx": "ec", "out dx, al": "ee", "std": "fd", "popfq": "9d",
    "ldmxcsr [rdi]": "0fae17", "fld1": "d9e8", "fucompp": "dae9", "fincstp": "d9f7", "emms": "0f77",
    "incsspq rax": "f3480faee8", "xend": "0f01d5", "wrpkru": "0f01ef", "wrfsbase rax": "f3480faed0",
    "movaps xmm0, xmm1": "0f28c1",
}  # fmt: skip


@pytest.mark.parametrize("code", TWICE.values(), ids=list(TWICE))
def test_what_may_run_once_more(code):
    assert replay_after(Replay(initial()), decode_one(bytes.fromhex(code), 0x1000)) is not None


@pytest.mark.parametrize("code", ONCE.values(), ids=list(ONCE))
def test_what_must_run_once(code):
    assert replay_after(Replay(initial()), decode_one(bytes.fromhex(code), 0x1000)) is None


def test_what_may_run_once_more_comes_to_the_same():
    found = forms.Forms()
    encodings.scan_every_opcode(found)
    verdicts = judge(found.codes(), "low", states=4, seed=1, oracle="support.displaced.repetition")
    assert differences(verdicts) == []
    assert sum(verdict == "ran" for verdict, _ in verdicts.values()) > 500
