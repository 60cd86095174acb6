/* Memory whose page faults the program serves itself, in the thread that is probed: with userfaultfd.
   "missing": pages that are not there; "minor": pages of a memfd that are not mapped yet. "late": none of it before a
   line is read, else it is read once there is. Reading it in a handler would wait for ever. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFDIO_REGISTER_MODE_MINOR
#define UFFDIO_REGISTER_MODE_MINOR ((__u64)1 << 2)
#endif
#ifndef UFFD_FEATURE_MINOR_SHMEM
#define UFFD_FEATURE_MINOR_SHMEM (1 << 10)
#endif
enum { PAGES = 64, ROUNDS = 200 };
static char there[] = "resident";
static char *region;

__attribute__((noipa)) long look(const char *text, long kind) { return kind + (text == 0); }

static int serve(int minor) {
    int descriptor = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API, .features = minor ? UFFD_FEATURE_MINOR_SHMEM : 0};
    if (descriptor < 0 || ioctl(descriptor, UFFDIO_API, &api)) return 77;
    if (minor) {
        int file = memfd_create("served", 0);
        char *written;
        if (file < 0 || ftruncate(file, PAGES * 4096)) return 3;
        written = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        memset(written, 'x', PAGES * 4096);
        region = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    } else
        region = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register asked = {.range = {(unsigned long)region, PAGES * 4096},
                                    .mode = minor ? UFFDIO_REGISTER_MODE_MINOR : UFFDIO_REGISTER_MODE_MISSING};
    return ioctl(descriptor, UFFDIO_REGISTER, &asked) ? 77 : 0;
}

int main(int argc, char **argv) {
    int minor = argc > 1 && !strcmp(argv[1], "minor"), late = argc > 2 && !strcmp(argv[2], "late"), failed = 0;
    if (!late && (failed = serve(minor))) return failed;
    if (getchar() == EOF) return 2;
    if (late && (failed = serve(minor))) return failed;
    for (int round = 0; round < ROUNDS; round++) {
        look(region + round % PAGES * 4096, 1);
        look(region + round % (PAGES - 1) * 4096 + 4090, 2);
        look(there, 3);
    }
    puts("done");
    return 0;
}
