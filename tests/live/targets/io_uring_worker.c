/* A process with an io_uring worker among its threads. */
#include "protocol.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
TALLY(uring_work);
static int pipes[2];
static unsigned *head, *tail, *cq_head, *cq_tail, mask, ring_fd;
static char *queue, buffer;
static struct io_uring_sqe *entries;
static struct io_uring_params parameters;
PROBED long uring_work(long x) { volatile long y = x; return y + 11; }
static void submit_read(void) {
    unsigned at = *tail & mask;
    memset(&entries[at], 0, sizeof *entries);
    entries[at].opcode = IORING_OP_READ; entries[at].fd = pipes[0]; entries[at].addr = (unsigned long)&buffer;
    entries[at].len = 1; entries[at].flags = IOSQE_ASYNC; entries[at].off = (unsigned long long)-1;
    ((unsigned *)(queue + parameters.sq_off.array))[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    check(syscall(SYS_io_uring_enter, ring_fd, 1, 0, 0, 0, 0) == 1, "io_uring_enter");
}
static void one_round(void) {
    for (long i = 0; i < 100; i++) { COUNTED(uring_work, check(uring_work(i) == i + 11, "uring_work")); }
    check(write(pipes[1], "y", 1) == 1, "write");
    while (__atomic_load_n(cq_tail, __ATOMIC_ACQUIRE) == *cq_head) ;
    struct io_uring_cqe *done = (struct io_uring_cqe *)(queue + parameters.cq_off.cqes) + (*cq_head & (parameters.cq_entries - 1));
    check(done->res == 1 && buffer == 'y', "the worker's read failed");
    __atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
    submit_read();
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    long fd = syscall(SYS_io_uring_setup, 4, &parameters);
    if (fd < 0) { say("unsupported io_uring_setup: %s\n", strerror(errno)); _exit(0); }
    ring_fd = (unsigned)fd;
    check(parameters.features & IORING_FEAT_SINGLE_MMAP, "kernel too old");
    queue = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    entries = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, IORING_OFF_SQES);
    check(queue != MAP_FAILED && (void *)entries != MAP_FAILED, "mmap");
    head = (unsigned *)(queue + parameters.sq_off.head); tail = (unsigned *)(queue + parameters.sq_off.tail);
    cq_head = (unsigned *)(queue + parameters.cq_off.head); cq_tail = (unsigned *)(queue + parameters.cq_off.tail);
    mask = parameters.sq_entries - 1;
    (void)head;
    check(!pipe(pipes), "pipe");
    submit_read();
    USE_TALLY(uring_work);
}
