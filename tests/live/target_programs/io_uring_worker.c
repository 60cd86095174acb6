// Has a kernel worker listed among its threads, blocked in a read.
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    struct io_uring_params p = {0};
    int fd = syscall(SYS_io_uring_setup, 4, &p), ends[2];
    if (fd < 0) { dprintf(1, "none\n"); return 0; }
    char *ring = mmap(0, p.sq_off.array + p.sq_entries * 4, 3, MAP_SHARED | MAP_POPULATE, fd, 0);
    struct io_uring_sqe *entry = mmap(0, 4096, 3, MAP_SHARED | MAP_POPULATE, fd, 0x10000000ULL);
    static char buffer[8];
    pipe(ends);
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_READ, entry->fd = ends[0], entry->addr = (long)buffer, entry->len = 8;
    entry->flags = IOSQE_ASYNC, entry->off = -1;
    *(unsigned *)(ring + p.sq_off.array) = 0;
    *(unsigned *)(ring + p.sq_off.tail) = 1;
    syscall(SYS_io_uring_enter, fd, 1, 0, 0, 0, 0);
    usleep(50000);
    dprintf(1, "ready\n");
    char byte;
    read(0, &byte, 1);
    write(ends[1], "12345678", 8);
    usleep(100000);
    dprintf(1, "%.8s\n", buffer);
}
