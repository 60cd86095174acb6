/* What the benchmarks measure: rounds of calls, timed by the program itself.
 *
 * stdin: "FUNCTION N" runs N calls on every thread; stdout: nanoseconds per call of each thread on one line.
 * "rdtsc N" gives the cost of the instruction. Threads are pinned, the first to the last processor.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

__attribute__((noinline, noclone, noipa, aligned(64), optimize("no-omit-frame-pointer"))) int work(int x) {
    volatile int kept[2] = {x, x ^ 0x55};
    int r = x * 3 + 7;
    r ^= r >> 3;
    return r + kept[0] - kept[1];
}
int leaf4(int x);
/* A function that ends in a jump to another one. */
int tailed(int x);
asm(".p2align 6\n.globl tailed\n.type tailed,@function\ntailed: .cfi_startproc\nxor $1,%edi\nlea 3(%rdi,%rdi,2),%edi\njmp leaf4\n.cfi_endproc\n.size tailed,.-tailed\n");
asm(".p2align 6\n.globl leaf4\n.type leaf4,@function\nleaf4: .cfi_startproc\nlea 1(%rdi),%eax\nret\n.cfi_endproc\n.size leaf4,.-leaf4\n.p2align 6\n");
__attribute__((noinline, noclone, noipa, aligned(64), patchable_function_entry(5))) int nop5(int x) { return x * 5 + 1; }
/* A function with a USDT marker, bench:marked, of two arguments. */
__attribute__((noinline, noclone, noipa, aligned(64))) int marked(int x) {
    int r = x * 3 + 7;
    asm volatile("990: nop\n.pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n"
                 "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b, 0, 0\n.asciz \"bench\"\n.asciz \"marked\"\n"
                 ".asciz \"-4@%0 -4@%1\"\n994: .balign 4\n.popsection\n" ::"r"(x), "r"(r));
    return r ^ r >> 3;
}

struct pair { long first, second; };
__attribute__((noinline, noclone, noipa, aligned(64))) int member(int x, struct pair *p) { p->first += x; p->second = x ^ p->first; return (int)p->second + x; }

static char function[32];
static long calls;
static double cost[64];
static pthread_barrier_t barrier;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* what others take of the processor is no call's */
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
__attribute__((noinline, aligned(64))) static int loop_work(long n, int r) { while (n--) r = work(r); return r; }
__attribute__((noinline, aligned(64))) static int loop_member(long n, int r) { struct pair *all = calloc(64, sizeof *all); while (n--) r = member(r, &all[n & 63]); free(all); return r; }
__attribute__((noinline, aligned(64))) static int loop_leaf4(long n, int r) { while (n--) r = leaf4(r); return r; }
__attribute__((noinline, aligned(64))) static int loop_nop5(long n, int r) { while (n--) r = nop5(r); return r; }
__attribute__((noinline, aligned(64))) static int loop_marked(long n, int r) { while (n--) r = marked(r); return r; }
__attribute__((noinline, aligned(64))) static int loop_tailed(long n, int r) { while (n--) r = tailed(r); return r; }
/* All calls by pointers come back at one place. */
__attribute__((noinline, aligned(64))) static int loop_pointer(long n, int r, int (*volatile f)(int)) { while (n--) r = f(r); return r; }
__attribute__((noinline, aligned(64))) static int loop_rdtsc(long n, int r) { while (n--) r += (int)__rdtsc(); return r; }

static void *run(void *argument) {
    long index = (long)argument;
    pthread_barrier_wait(&barrier);
    double start = now();
    int r = !strcmp(function, "work") ? loop_work(calls, 1) : !strcmp(function, "leaf4") ? loop_leaf4(calls, 1)
          : !strcmp(function, "tailed") ? loop_tailed(calls, 1)
          : !strcmp(function, "pointer_to_tailed") ? loop_pointer(calls, 1, tailed)
          : !strcmp(function, "pointer_to_leaf4") ? loop_pointer(calls, 1, leaf4)
          : !strcmp(function, "member") ? loop_member(calls, 1)
          : !strcmp(function, "nop5") ? loop_nop5(calls, 1)
          : !strcmp(function, "marked") ? loop_marked(calls, 1) : loop_rdtsc(calls, 1);
    cost[index] = (now() - start) / (double)calls;
    return (void *)(long)r;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    printf("ready %d\n", getpid());
    fflush(stdout);
    while (scanf("%31s %ld", function, &calls) == 2) {
        pthread_t thread[64];
        pthread_barrier_init(&barrier, 0, (unsigned)threads);
        for (long i = 0; i < threads; i++) {
            cpu_set_t one;
            pthread_attr_t attributes;
            CPU_ZERO(&one);
            CPU_SET((processors - 1 - i % processors + processors) % processors, &one);
            pthread_attr_init(&attributes);
            pthread_attr_setaffinity_np(&attributes, sizeof one, &one);
            pthread_create(&thread[i], &attributes, run, (void *)i);
        }
        for (long i = 0; i < threads; i++) pthread_join(thread[i], 0);
        for (long i = 0; i < threads; i++) printf("%.4f ", cost[i]);
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
