"""What values of parameters decide in a function. The assembly stands beside the bytes."""

from types import SimpleNamespace

from anyprobe.isa.registers import NUMBERS
from anyprobe.probes.providers.function.optimising.specialiser import _decided

BASE = 0x401000
CODE = bytes.fromhex(
    "b8 01 00 00 00  85 c0  74 06"  # 0: mov eax, 1; test eax, eax; je 15: never, whatever the parameters are
    "85 ff  74 06  0f 0b"  # 9: test edi, edi; je 19; 13: ud2
    "90 90 90 90"  # 15: nop
    "8d 47 05  c3"  # 19: lea eax, [rdi+5]; ret
)


def decided(code_map, **values):
    found = code_map(BASE, CODE, [(0, len(CODE))])
    found.survey()
    return _decided(
        SimpleNamespace(code=found), found.function_at(BASE), {NUMBERS[name]: values[name] for name in values}
    )


def test_what_is_so_for_all_values_is_not_what_one_decides(code_map):
    assert decided(code_map) == (0, 0, 0)
    assert decided(code_map, rsi=7) == (0, 0, 0)
    assert decided(code_map, rdi=0) == (1, 1, 2)  # the second jump, the result, and the two blocks between
