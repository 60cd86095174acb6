"""Programs that filter their system calls from the start: followed where the filters permit what that takes."""

import subprocess
from pathlib import Path

import pytest

import anyprobe
from anyprobe.probes.following.followed import Followed
from anyprobe.target.system import procfs
from support.driver import build, wait_until
from support.results import hits

pytestmark = [pytest.mark.live, pytest.mark.root]
LIBRARY = """
__attribute__((noinline)) int plugin_work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
__attribute__((constructor)) static void begin(void) { for (int n = 0; n < 100; n++) plugin_work(n); }
"""
PROGRAM = """
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
static void use(const char *path) {
    int (*work)(int) = (int (*)(int))dlsym(dlopen(path, RTLD_NOW), "plugin_work");
    for (int n = 0; n < 1000; n++) work(n);
}
int main(int argc, char **argv) {
    int status;
    if (argc > 2 && !fork()) { execl(argv[0], argv[0], argv[1], (char *)0); _exit(1); }
    if (argc > 2 && (wait(&status) < 0 || status)) return 1;
    if (!fork()) { use(argv[1]); _exit(0); }
    wait(&status);
    use(argv[1]);
    return status != 0;
}
"""
FILTERS = """
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(argv[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    (void)argc;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 2;
    if (read(0, &filter, 1) != 1) return 3;
    execv(argv[2], argv + 2);
    return 4;
}
"""
CHMOD, PROCESS_VM_READV, GETTID = 90, 310, 186
ONE = 100 + 1000


def filtered(forbidden):
    """Start a program that filters its calls, and executes another as soon as it reads something."""
    library = build("filtered_plugin.c", "-shared", "-fPIC", "-O1", text=LIBRARY)
    program = build("filtered_program.c", "-O1", "-ldl", text=PROGRAM)
    command = [build("filters_first.c", "-O1", text=FILTERS), str(forbidden), program, library, "twice"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    wait_until(lambda: "\nSeccomp:\t2" in Path(f"/proc/{process.pid}/status").read_text(), "the filter")
    return process


def go_to_the_end(process, tree):
    """Have it execute and end; ``wait`` would take stops for ends, which are told to this process as the tracer."""
    process.stdin.write(b"x")
    process.stdin.close()
    wait_until(lambda: (tree.pump(0.05), procfs.read_stat(process.pid).ended)[1], "the end")
    assert process.wait(180) == 0


@pytest.mark.parametrize("forbidden", [CHMOD, PROCESS_VM_READV], ids=["chmod", "process_vm_readv"])
def test_what_permits_it_is_followed(forbidden):
    """Through an execution, and one in a fork child; libraries in both, and in children, from constructors on."""
    with filtered(forbidden) as process, Followed.attach([process.pid], pending="always") as tree:
        tree.count("filtered_plugin:plugin_work")
        go_to_the_end(process, tree)
        assert tree.notes() == []
        assert len(tree.snapshots()) == 3
        assert hits(tree.snapshot(), "plugin_work") == 4 * ONE


def test_what_forbids_it_is_named_and_unharmed():
    with filtered(GETTID) as process, Followed.attach([process.pid], pending="always") as tree:
        tree.count("filtered_plugin:plugin_work")
        go_to_the_end(process, tree)
        warned = [warning for each in tree.snapshots() for warning in each.warnings]
        assert any("it filters its system calls" in warning for warning in warned)
        assert hits(tree.snapshot(), "plugin_work") == 0
        assert any("was executed" in note for note in tree.notes())


@pytest.mark.parametrize(("forbidden", "readable"), [(CHMOD, True), (PROCESS_VM_READV, False)])
def test_memory_is_read_where_that_is_permitted(forbidden, readable):
    with filtered(forbidden) as process, anyprobe.attach(process.pid) as session:
        assert session.process.is_filtered() is not readable
        process.kill()
