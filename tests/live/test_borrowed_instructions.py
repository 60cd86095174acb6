"""Instructions of the program that injected calls borrow stay as they are; what stands next to them is probed."""

import json

import pytest

from live.test_command_line import anyprobe as command
from support.driver import build

pytestmark = pytest.mark.live

ALONE = """
#include <sys/syscall.h>
__attribute__((noinline, noclone, naked)) long asks(long number) { __asm__("mov %rdi, %rax; syscall; ret"); }
__attribute__((noinline, noclone, naked, aligned(1)))
long follows(long n) { __asm__("push %rbx; mov %rdi, %rbx; lea 1(%rbx), %rax; pop %rbx; ret"); }
volatile long kept;
int main(void) { for (int n = 0; n < 100; n++) kept = asks(SYS_getppid) + follows(n); return 0; }
"""


def test_a_function_directly_after_a_system_call_that_anyprobe_borrows_is_probed():
    program = str(build("after_system_call.c", "-O1", "-falign-functions=1", text=ALONE))
    found = command("count", "a.out:follows", "--when", "n >= 0", "--", program)
    assert found.returncode == 0, found.stderr
    assert "refused" not in found.stderr
    found = command("time", "a.out:follows", "--json", "-o", "/dev/stdout", "--", program)
    assert json.loads(found.stdout)["functions"][0]["count"] == 100
