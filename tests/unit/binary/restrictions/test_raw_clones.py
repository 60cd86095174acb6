"""Programs that make tasks by the system call itself: which may share a thread pointer, and which only fork."""

import pytest

from anyprobe.binary.images.image import Image

HEAD = """#define _GNU_SOURCE
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
long raw(long number, long flags) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(flags), "S"(0), "d"(0) : "rcx", "r11", "memory");
    return result;
}
"""
CASES = {
    "syscall(SYS_clone, CLONE_SETTLS | SIGCHLD, 0, 0, 0, 0)": True,
    "syscall(SYS_clone, CLONE_VM | CLONE_FS | SIGCHLD, malloc(9), 0, 0, 0)": True,
    "syscall(SYS_clone3, &(struct clone_args){.flags = CLONE_VM, .exit_signal = SIGCHLD}, 88L)": True,
    "syscall(SYS_clone3, &(struct clone_args){.flags = CLONE_SETTLS | CLONE_PIDFD, .pidfd = 7}, 88L)": True,
    "syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)": False,
    "syscall(SYS_clone3, &(struct clone_args){.flags = CLONE_PIDFD, .exit_signal = SIGCHLD}, 88L)": False,
    "syscall(SYS_gettid) + (long)malloc(56) + (long)malloc(435)": False,
    '({ long r; __asm__ volatile("syscall" : "=a"(r) : "a"(56), "D"(0x80011L), "S"(0), "d"(0) : "rcx", "r11"); r; })':
        True,
    "raw(39, 0x100)": False,
}  # fmt: skip


@pytest.mark.parametrize("flags", [("-O0",), ("-O2",), ("-O2", "-fno-plt"), ("-O2", "-static")], ids=" ".join)
@pytest.mark.parametrize("call", CASES)
def test_what_makes_tasks(build, call, flags):
    image = Image.open(build(HEAD + f"int main(void) {{ return (int){call}; }}", *flags))
    main = image.functions.lookup("main")[0]
    found = image.task_makers.tolist()
    assert any(main.start <= at < main.end for at in found) == CASES[call]
    assert CASES[call] or not found or "-static" in flags  # the C library does


@pytest.mark.parametrize("path", ["/usr/bin/python3.11", "/usr/bin/rg", "/usr/bin/redis-server"])
def test_everyday_programs_do_not(path):
    assert not len(Image.open(path).task_makers)


def test_a_static_programs_fork_does_not(build):
    """It is followed by ``set_robust_list``, whose number looks like flags."""
    image = Image.open(build("#include <unistd.h>\nint main(void) { return fork(); }", "-O2", "-static"))
    makers = {image.functions.containing(at).name for at in image.task_makers.tolist()}
    assert not {name for name in makers if "ork" in name}, makers
