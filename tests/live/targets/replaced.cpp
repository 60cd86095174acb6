/* Functions to be replaced, each in the situation of one of libpulp's tests; a line of input asks for an answer. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone, noipa))
volatile long going = 1, sink, inside;
__thread long own = 5;
static int pipes[2];
extern "C" {
/* a call and its replacement */
KEPT long price(long n) { return n * 2; }
KEPT long fee(long n) { return n + 1; }
KEPT long price_new(long n) { return n * 20; }
KEPT long fee_new(long n) { return n + 10; }
KEPT long fee_twice(long n) { return fee(n) * 1000 + 1; }
/* both belong together: what one makes, the other one reads */
KEPT long packed(long n) { return n ^ 0x55; }
KEPT long unpacked(long n) { return n ^ 0x55; }
KEPT long packed_new(long n) { return n + 0x1000; }
KEPT long unpacked_new(long n) { return n - 0x1000; }
KEPT long there_and_back(long n) { return unpacked(packed(n)); }
/* recursion */
KEPT long depth(long n) { return n <= 0 ? 0 : (3 * depth(n - 1) + 1) % 1001; }
KEPT long depth_new(long n) { return n <= 0 ? 0 : (5 * depth(n - 1) + 2) % 1001; }
/* an exception on its way */
KEPT void thrower(long n) { if (n % 5 == 0) throw n; sink += n; }
KEPT long passes(long n) { long local = n * 3; thrower(n); return local; }
KEPT long passes_new(long n) { long local = n * 7; thrower(n); return local; }
/* the red zone is in use where it is called from and where it runs */
long leaf(long n);
__asm__(".globl leaf\n.type leaf, @function\nleaf: mov %rdi, -8(%rsp); mov %rdi, -64(%rsp); mov -8(%rsp), %rax; "
        "add -64(%rsp), %rax; ret\n.size leaf, .-leaf");
KEPT long leaf_new(long n) { volatile long kept[12]; for (int i = 0; i < 12; i++) kept[i] = n + i; return kept[11]; }
/* one lies on two pages, the other one's first instruction does, so that no splice can be made there */
long crossing(long n);
long straddling(long n);
__asm__(".pushsection .text.crossing, \"ax\", @progbits\n.balign 4096\n.skip 4080, 0xcc\n.globl crossing\n"
        ".type crossing, @function\ncrossing: mov $7, %eax; lea (%rdi,%rdi,4), %rdx; add %rdx, %rax; add $0, %rax; "
        "add $0, %rax; ret\n.size crossing, .-crossing\n.balign 4096\n.skip 4093, 0xcc\n.globl straddling\n"
        ".type straddling, @function\nstraddling: lea 7(%rdi,%rdi,4), %rax; ret\n.size straddling, .-straddling\n"
        ".popsection");
KEPT long crossing_new(long n) { return n + 1000; }
/* thread-local memory */
KEPT long counted(long n) { return own += n; }
KEPT long counted_new(long n) { return own += 100 * n; }
/* a thread waits inside, in a system call */
KEPT long waits(long n) { char byte = 0; inside = 1; long got = read(pipes[0], &byte, 1); return got * n + byte; }
KEPT long waits_new(long n) { return -n; }
/* the one that is inside holds a lock that the new one takes */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
KEPT long locked(long n) {
    pthread_mutex_lock(&lock);
    inside = 1;
    while (going) usleep(100);
    pthread_mutex_unlock(&lock);
    return n;
}
KEPT long locked_new(long n) { pthread_mutex_lock(&lock); pthread_mutex_unlock(&lock); return n * 9; }
}
static void *in_waits(void *) { return (void *)waits(7); }
static void *in_locked(void *) { return (void *)locked(3); }
static volatile long rounds, torn;
static void *works(void *) {
    while (going) {
        long n = rounds & 0xfff, back = there_and_back(n);
        if (n != back) torn++;
        price(fee(n));
        for (volatile int i = 0; i < 5000; i++) {}
        rounds++;
    }
    return 0;
}
static void *allocates(void *) {
    for (long i = 0; going; i++) { free(malloc(16 + i % 4000)); rounds++; }
    return 0;
}
/* from here on, files cannot be opened */
static int confined() {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
static long caught(long count) {
    long sum = 0;
    for (long i = 0; i < count; i++) { try { sum += passes(i); } catch (long n) { sum += 1000000; } }
    return sum;
}
int main() {
    char line[64];
    pthread_t thread, threads[3];
    setvbuf(stdout, 0, _IOLBF, 0);
    if (pipe(pipes)) return 1;
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        long n = atol(line + 1);
        void *result = 0;
        switch (*line) {
        case 'p': printf("%ld %ld\n", price(n), fee(n)); break;
        case 'd': printf("%ld\n", depth(n)); break;
        case 'e': printf("%ld\n", caught(n)); break;
        case 'l': printf("%ld\n", leaf(n)); break;
        case 'x': printf("%ld\n", crossing(n) + straddling(0)); break;
        case 't': printf("%ld\n", counted(n)); break;
        case 'w': inside = 0; pthread_create(&thread, 0, in_waits, 0); while (!inside) usleep(100); printf("waits\n"); break;
        case 'W': if (write(pipes[1], "\5", 1) == 1) pthread_join(thread, &result); printf("%ld\n", (long)result); break;
        case 'c': printf("%ld\n", waits(n)); break;
        case 'k': inside = 0; pthread_create(&thread, 0, in_locked, 0); while (!inside) usleep(100); printf("holds\n"); break;
        case 'K': going = 0; printf("%ld", locked(n)); pthread_join(thread, &result); going = 1;
            printf(" %ld\n", (long)result); break;
        case 'f': {
            pid_t child = fork();
            if (!child) { printf("%ld %ld\n", price(n), fee(n)); exit(0); }
            waitpid(child, 0, 0);
            break;
        }
        case 's': printf("%d\n", confined()); break;
        case 'm': { /* allocates in all of its threads, this one included, for n milliseconds */
            rounds = 0;
            for (auto &each : threads) pthread_create(&each, 0, allocates, 0);
            struct timespec now, begin;
            clock_gettime(CLOCK_MONOTONIC, &begin);
            do {
                for (int i = 0; i < 1000; i++) free(malloc(16 + i));
                clock_gettime(CLOCK_MONOTONIC, &now);
            } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < n);
            going = 0;
            for (auto &each : threads) pthread_join(each, 0);
            going = 1;
            printf("allocated\n");
            break;
        }
        case 'b': rounds = torn = 0; for (auto &each : threads) pthread_create(&each, 0, works, 0);
            while (rounds < 1000) usleep(100);
            printf("busy\n"); break;
        case 'B': going = 0; for (auto &each : threads) pthread_join(each, 0);
            going = 1; printf("%d %ld\n", rounds > 1000, torn); break;
        }
    }
}
