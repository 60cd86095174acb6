/* A program that begins to filter its system calls: what it does not know itself kills it. */
#include "protocol.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
TALLY(look);
static const char *way = "";
static int begun;
PROBED long look(const char *text, long n) {
    CALLED(look);
    RETURNED(look);
    return (long)text + n;
}
static void begin(void) {
    static const int forbidden[] = {SYS_process_vm_readv, SYS_process_vm_writev, SYS_getpid, SYS_futex};
    struct sock_filter program[16] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int length = 1;
    for (int n = 0; n < 4; n++) {
        program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, forbidden[n], 0, 1);
        program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {(unsigned short)length, program};
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges");
    if (!strcmp(way, "prctl")) check(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "prctl");
    else if (!strcmp(way, "seccomp")) check(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter), "seccomp");
    else check(!syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "syscall");
}
static void one_round(void) {
    static char text[] = "hello";
    char here[] = "here";
    for (long n = 0; n < 100; n++) check(look(text, n) == (long)text + n && look(here, n) == (long)here + n, "look");
    if (!begun++ && *way) begin();
}
static void setup(int argc, char **argv) {
    USE_TALLY(look);
    if (argc > 1) way = argv[1];
}
