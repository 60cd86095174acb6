/* Serves a file system of one file and maps that file: reading what is not resident waits for the very thread that is
   probed. A line is read, and the file is mapped "before" that; "late": after it; "all": the whole file system comes
   after it. 77: it cannot be had here. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGES = 64, ROUNDS = 200, NOT_HERE = 77, MOST = 1 << 18 };
static char there[] = "resident";
static char *region;
static int device;
static volatile int helping;

__attribute__((noipa)) long look(const char *text, long kind) { return kind + (text == 0); }

static void answer(struct fuse_in_header *asked, int error, const void *content, unsigned size) {
    static char bytes[MOST];
    struct fuse_out_header head = {.len = sizeof head + size, .error = -error, .unique = asked->unique};
    memcpy(bytes, &head, sizeof head);
    if (size) memcpy(bytes + sizeof head, content, size);
    if (write(device, bytes, head.len) < 0 && errno != ENOENT) perror("answer");
}

static void serve_one(void) {
    static char bytes[MOST], content[MOST];
    struct fuse_in_header *asked = (void *)bytes;
    struct fuse_attr attributes = {.size = PAGES * 4096, .nlink = 1, .blksize = 4096};
    if (read(device, bytes, sizeof bytes) <= 0) return;
    attributes.ino = asked->opcode == FUSE_LOOKUP ? 2 : asked->nodeid;
    attributes.mode = (attributes.ino == 1 ? S_IFDIR : S_IFREG) | 0755;
    switch (asked->opcode) {
    case FUSE_INIT: {
        struct fuse_init_out made = {.major = 7, .minor = 31, .max_write = 4096, .max_background = 8, .time_gran = 1};
        answer(asked, 0, &made, sizeof made);
        break;
    }
    case FUSE_LOOKUP: {
        struct fuse_entry_out found = {.nodeid = 2, .attr_valid = 1000, .entry_valid = 1000, .attr = attributes};
        answer(asked, 0, &found, sizeof found);
        break;
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out told = {.attr_valid = 1000, .attr = attributes};
        answer(asked, 0, &told, sizeof told);
        break;
    }
    case FUSE_OPEN: {
        struct fuse_open_out opened = {0};
        answer(asked, 0, &opened, sizeof opened);
        break;
    }
    case FUSE_READ: answer(asked, 0, memset(content, 'x', PAGES * 4096), ((struct fuse_read_in *)(asked + 1))->size); break;
    case FUSE_RELEASE:
    case FUSE_FLUSH: answer(asked, 0, 0, 0); break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: break;
    default: answer(asked, ENOSYS, 0, 0);
    }
}

static void *help(void *nothing) {
    struct pollfd wait = {device, POLLIN, 0};
    while (helping)
        if (poll(&wait, 1, 10) > 0) serve_one();
    return nothing;
}

static int mount_it(const char *directory) {
    char options[100];
    if (unshare(CLONE_NEWNS) || mount("none", "/", 0, MS_REC | MS_PRIVATE, 0)) return NOT_HERE;
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) return NOT_HERE;
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    return mount("served", directory, "fuse", MS_NOSUID | MS_NODEV, options) ? NOT_HERE : 0;
}

static int map_it(const char *directory) {
    char name[300];
    pthread_t helper;
    int file;
    snprintf(name, sizeof name, "%s/file", directory);
    helping = 1;
    pthread_create(&helper, 0, help, 0);
    file = open(name, O_RDONLY);
    if (file < 0) return 3;
    region = mmap(0, PAGES * 4096, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    helping = 0;
    pthread_join(helper, 0);
    return region == MAP_FAILED ? 3 : 0;
}

int main(int argc, char **argv) {
    const char *when = argv[1], *directory = argv[argc - 1];
    int all = !strcmp(when, "all"), late = all || !strcmp(when, "late"), failed = 0;
    if (!all && (failed = mount_it(directory))) return failed;
    if (!late && (failed = map_it(directory))) return failed;
    if (getchar() == EOF) return 2;
    if (all && (failed = mount_it(directory))) return failed;
    if (late && (failed = map_it(directory))) return failed;
    for (int round = 0; round < ROUNDS; round++) {
        look(region + round % PAGES * 4096, 1);
        look(region + round % (PAGES - 1) * 4096 + 4090, 2);
        look(there, 3);
    }
    puts("done");
    fflush(stdout);
    _exit(0);
}
