/* A program that changes its own code while it is probed; arguments: how, and for hooks how many bytes they write.
 * Commands on standard input: "r N" runs N calls, "c" changes the text, "u" takes the change back; each is answered. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
long calls, hooked;
__attribute__((noinline, section(".text.work"), aligned(4096))) long work(long x) { calls++; return x * 3 + 1; }
__attribute__((noinline, section(".text.work"))) long other(long x) { calls++; return x ^ 5; }
__attribute__((noinline, section(".text.work"))) long third(long x) { calls++; return x - 7; }
/* so that a page can go and leave the rest in place */
__attribute__((noinline, section(".text.work"), aligned(4096))) long replacement(long x) { hooked++; return x * 3 + 1; }
static unsigned char saved[16];
static size_t size;
static void fail(const char *what) { perror(what); exit(2); }
static void area(uintptr_t *from, uintptr_t *to) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        uintptr_t low, high;
        if (sscanf(line, "%lx-%lx", &low, &high) == 2 && low <= (uintptr_t)work && (uintptr_t)work < high) *from = low, *to = high;
    }
    fclose(maps);
}
/* Puts a copy of the text, or of one page of it, in its place: other memory, the same bytes. */
static void remap(const char *how) {
    uintptr_t low = 0, high = 0;
    area(&low, &high);
    if (strstr(how, "page")) low = (uintptr_t)work & -4096l, high = low + 4096;
    size_t length = high - low;
    int fd = strstr(how, "memfd") ? memfd_create("text", 0) : -1;
    if (fd >= 0 && ftruncate(fd, (off_t)length)) fail("ftruncate");
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : strstr(how, "shared") ? MAP_SHARED : MAP_PRIVATE;
    if (fd >= 0 && write(fd, (void *)low, length) != (ssize_t)length) fail("write");
    char *fresh = mmap(0, length, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (fresh == MAP_FAILED) fail("mmap");
    if (fd < 0) memcpy(fresh, (void *)low, length);
    if (mprotect(fresh, length, PROT_READ | PROT_EXEC)) fail("mprotect");
    if (mremap(fresh, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)low) == MAP_FAILED) fail("mremap");
}
static void patch(const void *bytes) {
    if (mprotect(work, 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) fail("mprotect");
    memcpy((void *)work, bytes, size);
    if (mprotect(work, 4096, PROT_READ | PROT_EXEC)) fail("mprotect");
}
static void hook(void) {
    unsigned char jump[16] = {0xe9};
    uint64_t to = (uint64_t)replacement;
    int32_t distance = (int32_t)(to - ((uint64_t)work + 5));
    memcpy(jump + 1, &distance, 4);
    if (size == 12) memcpy(jump, "\x48\xb8", 2), memcpy(jump + 2, &to, 8), memcpy(jump + 10, "\xff\xe0", 2);
    if (size == 14) memcpy(jump, "\xff\x25\0\0\0", 6), memcpy(jump + 6, &to, 8);
    memcpy(saved, (void *)work, size);
    patch(jump);
}
int main(int argc, char **argv) {
    long (*volatile functions[])(long) = {work, other, third};
    long sum = 0, right = 0, n;
    char line[64];
    size = argc > 2 ? (size_t)atoi(argv[2]) : 0;
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'r' && sscanf(line + 1, "%ld", &n) == 1) {
            for (long i = 0; i < n; i++) sum += functions[0](i) + functions[1](i) + functions[2](i), right += i * 3 + 1 + (i ^ 5) + (i - 7);
        } else if (line[0] == 'c') {
            if (size) hook(); else remap(argv[1]);
        } else if (line[0] == 'u') patch(saved);
        printf("%s %02x\n", sum == right ? "right" : "wrong", *(unsigned char *)work);
    }
    return 0;
}
