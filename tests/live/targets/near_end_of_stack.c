/* Calls a function where its stack ends so many bytes below the stack pointer at its first instruction: what goes
   further meets a page that is not there. Each of some threads does so, or each of some fork children ("fork"); or
   none does before a line is read ("wait"). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 20, CALLS = 50, PAGES = 16 };
static char *lowest;
static long room, total;

__attribute__((noinline, noclone)) long probed(long number, const char *text) {
    __asm__ volatile("" : : "r"(number), "r"(text) : "memory");
    return number + 1;
}

static long call_there(long number) {
    long result;
    __asm__ volatile("mov %%rsp, %%rbx\n mov %1, %%rsp\n call probed\n mov %%rbx, %%rsp"
                     : "=a"(result)
                     : "r"(lowest + room + 8), "D"(number), "S"("text")
                     : "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "memory");
    return result;
}

static void *work(void *unused) {
    for (long call = 0; call < CALLS; call++) total += call_there(call);
    return unused;
}

int main(int argc, char **argv) {
    char *pages = mmap(0, (PAGES + 1) * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    if (argc < 2 || pages == MAP_FAILED || mprotect(pages, 4096, PROT_NONE)) return 2;
    room = atol(argv[1]);
    if (argc > 2 && !strcmp(argv[2], "wait")) getchar();
    lowest = pages + 4096;
    for (int each = 0; each < THREADS; each++) {
        if (argc > 2 && !strcmp(argv[2], "fork")) {
            if (!fork()) {
                total = 0;
                work(0);
                _exit(total != CALLS * (CALLS + 1) / 2);
            }
            if (wait(&status) < 0 || status) return 3;
            total += CALLS * (CALLS + 1) / 2;
            continue;
        }
        pthread_t thread;
        if (pthread_create(&thread, 0, work, 0) || pthread_join(thread, 0)) return 4;
    }
    printf("%ld\n", total);
    return 0;
}
