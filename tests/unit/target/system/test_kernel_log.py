"""Lines of the kernel's log that tell of faults."""

import pytest

from anyprobe.target.system.kernel_log import _FAULT, _FORBIDDEN

LINES = {
    "6,9,28,-;many[24712]: segfault at 8 ip 000055f6671163a0 sp 00007ffe5d24b7f8 error 4 in"
    " faults[13a0,55f667116000+1000] likely on CPU 0 (core 0, socket 0)": (24712, 0x55F6671163A0, "faults"),
    "6,5,1,-;a b[c][7]: segfault at 10 ip 0000000000000010 sp 00007fff0 error 14 likely on CPU 1": (7, 0x10, None),
    "6,5,1,-;x[8]: segfault at 8 ip 00007f0000001000 sp 00007fff0 error 4 in libc-2.31.so[7f0000000000+150000]": (
        8, 0x7F0000001000, "libc-2.31.so",
    ),
    "6,5,1,-;traps: ud[3045] trap invalid opcode ip:401106 sp:7ffd error:0 in ud[401000+1000]": (3045, 0x401106, "ud"),
    "6,5,1,-;traps: gp[9] general protection fault ip:55e1 sp:7ffd error:0 in gp[1131,55e0+10]": (9, 0x55E1, "gp"),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_fault(line):
    found = _FAULT.search(line)
    assert (int(found["tid"]), int(found["pc"], 16), found["file"]) == LINES[line]


def test_what_tells_of_none():
    assert _FAULT.search("6,1,1,-;usb 1-1: new device ip 12 found") is None


FORBIDDEN = (
    "5,9,1,-;audit: type=1326 audit(1795954734.176:43): auid=4294967295 uid=0 gid=0 ses=4294967295 pid=17439"
    ' comm="sys" exe="/tmp/sys" sig={} arch=c000003e syscall=110 compat=0 ip=0x7f67ab322829 code={}'
)


def test_a_forbidden_system_call():
    found = _FORBIDDEN.search(FORBIDDEN.format(31, "0x80000000"))
    assert (int(found["tid"]), int(found["pc"], 16)) == (17439, 0x7F67AB322829)


@pytest.mark.parametrize(("sig", "code"), [(0, "0x7ffc0000"), (31, "0x0")], ids=["that is logged", "of one thread"])
def test_one_that_ends_no_process(sig, code):
    assert _FORBIDDEN.search(FORBIDDEN.format(sig, code)) is None
