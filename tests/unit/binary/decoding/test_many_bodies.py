"""Functions that are examined together are what they are when each is examined alone."""

from array import array
from dataclasses import replace

import iced_x86
import numpy as np
import pytest

from anyprobe.binary.decoding import instruction_kinds, many_bodies
from anyprobe.binary.decoding.instruction_masks import mask_numbers
from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.isa.decode import decode_iced
from support.module_under_test import Module, function

LIBC, LOADER = "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"


def functions(path):
    text = replace(Image.open(path).text(), store=None)
    made = CodeMap(text)
    return [
        code for start in text.function_starts.tolist() if isinstance(code := made.function_at(start), FunctionCode)
    ]


def told(code):
    facts = code._facts
    lists = [list(facts.jumps), list(facts.calls), facts.indirect_jumps, facts.after_calls, facts.codes, facts.turns]
    return code.start, code.end, code.addresses, code.ends, code.overlapped, code.has_gaps, lists, facts.invalid


@pytest.mark.parametrize(("path", "portion"), [(LIBC, 400_000), (LOADER, 1), (LOADER, 1000)])
def test_each_is_what_it_is_alone(monkeypatch, path, portion):
    monkeypatch.setattr(many_bodies, "_PORTION", portion)
    alone, together = functions(path), functions(path)
    many_bodies.examine_together(together)
    plain = [code for code in together if code.mask_numbers is not None]
    assert len(plain) > 0.9 * len(together)
    for code, other in zip(alone, together, strict=True):
        assert told(other) == told(code)
        if other.mask_numbers is not None:
            assert other.mask_numbers == array("i", mask_numbers(code))


def test_odd_ones_look_for_themselves(build):
    bodies = {
        "misled": "jmp 1f + 1\n 1: mov eax, 0x90c3c031\n ret",
        "unlocked": "je 1f + 1\n 1: lock add dword ptr [rdi], 1\n ret",
        "undecodable": "ret\n .byte 0x06, 0x07\n ret",
        "plain": "je 1f\n nop\n 1: ret",
    }
    source = "".join(function(name, body) for name, body in bodies.items())
    module, other = Module.assembled(build, source), Module.assembled(build, source)
    many_bodies.examine_together([module[name] for name in sorted(bodies, key=lambda name: module[name].start)])
    assert {name for name in bodies if module[name].mask_numbers is not None} == {"plain"}
    assert [told(module[name]) for name in bodies] == [told(other[name]) for name in bodies]
    assert module["unlocked"].overlapped


def test_what_is_decoded_alone_is_the_same_as_among_the_others():
    code, other = (functions(LOADER)[200] for _ in range(2))
    expected = [(one.code, one.ip, one.next_ip, str(one)) for one in code.iced]
    assert len(other.addresses) == len(expected)
    other.drop_instructions()
    found = [(one.code, one.ip, one.next_ip, str(one)) for one in map(other.one, range(len(expected)))]
    assert found == expected
    other.drop_instructions()
    assert "_line" not in vars(other)
    assert other.insn(0).address == code.start


def test_kinds_go_by_what_counts():
    lines = (
        "0f0fc19e", "0f0fc1bf", "0f0fc1b4",  # 3DNow!: the last byte says which it is
        "c1e000", "c1e005",  # a shift by zero leaves the flags alone
        "e800000000", "e8ffffff7f", "c3", "0f8400000000", "0f85ffffffff", "cd80", "cd03",
        "83c8ff", "83c801", "488b442408", "488b44240c", "c4e2790001", "62f17c48581d11223344",
        "66666666662e0f1f840000000000",
        "48b80102030405060708", "48c7842411111111ffffffff",
    )  # fmt: skip
    raws = [bytes.fromhex(line) for line in (*lines, *reversed(lines))]
    content = b"".join(raws)
    decoded = decode_iced(content, 0x1000)
    sizes = np.frombuffer(bytes(map(len, decoded)), np.uint8)
    kinds = instruction_kinds.kinds_of(content, sizes)
    assert instruction_kinds.codes_of(kinds).tolist() == [one.code for one in decoded]
    assert kinds[lines.index("c1e000")] != kinds[lines.index("c1e005")]
    assert kinds[lines.index("e800000000")] == kinds[lines.index("e8ffffff7f")]
    assert kinds[lines.index("488b442408")] == kinds[lines.index("488b44240c")]


def test_what_is_cut_off_is_no_instruction():
    whole, cut = bytes.fromhex("488b0511223344"), bytes.fromhex("488b")
    for first, second in ((whole, cut), (cut, whole)):
        decoded = [*decode_iced(first, 0), *decode_iced(second, len(first))]
        sizes = np.frombuffer(bytes(map(len, decoded)), np.uint8)
        kinds = instruction_kinds.kinds_of(first + second, sizes)
        codes = instruction_kinds.codes_of(kinds).tolist()
        assert codes == [one.code for one in decoded]
        assert codes.count(iced_x86.Code.INVALID) >= 1
