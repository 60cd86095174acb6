"""Where Go code comes to system calls of its own choice."""

from types import SimpleNamespace

import pytest

from anyprobe.binary.restrictions.go_calls import go_call_sites
from anyprobe.core.address import AddressRange

START, MAKER, CALL = 0x1000, 0x2000, 59
LOOKS = "49 3b 66 10 76 20 48 83 ec 18"  # cmp rsp, [r14+0x10]; jbe; sub rsp, 24
LOOKS_FAR = "4c 8d a4 24 68 fe ff ff 4d 3b 66 10 76 20"  # lea r12, [rsp-0x198]; cmp r12, [r14+0x10]; jbe
NEVER_LOOKS = "48 83 ec 18 90 90"
LOAD = "b8 3b 00 00 00"


def sites(text, name="syscall.RawSyscall", *, at_call=()):
    code = bytes.fromhex(text)
    call = START + len(code)
    code += b"\xe8" + (MAKER - call - 5).to_bytes(4, "little")
    elf = SimpleNamespace(read=lambda start, size: code[start - START :][:size])
    own, other = SimpleNamespace(start=START, name="main.main"), SimpleNamespace(start=MAKER, name=name)
    functions = SimpleNamespace(containing=lambda address: own if address < MAKER else other)
    at_load = () if at_call else (CALL,)
    return list(go_call_sites(elf, [AddressRange(START, call + 5)], functions, at_load, at_call)), call


@pytest.mark.parametrize("begin", [LOOKS, LOOKS_FAR])
@pytest.mark.parametrize("between", ["", "48 89 c3 31 c9"], ids=["at once", "arguments between"])
def test_a_number_is_loaded_and_a_function_called_that_makes_any_call(begin, between):
    found, call = sites(f"{begin} {LOAD} {between}")
    place = START + len(bytes.fromhex(begin))
    assert found == [(place, CALL)]
    assert sites(f"{begin} {LOAD} {between}", at_call=(CALL,))[0] == [(call, CALL)]


@pytest.mark.parametrize(
    "name", ["syscall.Syscall6", "runtime/internal/syscall.Syscall6", "golang.org/x/sys/unix.RawSyscall.abi0"]
)
def test_what_such_functions_are_called(name):
    assert len(sites(f"{LOOKS} {LOAD}", name)[0]) == 1


def test_other_functions_have_other_first_arguments():
    assert sites(f"{LOOKS} {LOAD}", "strconv.Itoa")[0] == []


def test_not_where_the_stack_may_have_no_room():
    assert sites(f"{NEVER_LOOKS} {LOAD}")[0] == []


def test_not_where_another_way_may_be_taken():
    assert sites(f"{LOOKS} {LOAD} 74 02 90 90")[0] == []
