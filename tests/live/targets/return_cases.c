/* What tests of return probes call elsewhere: results of each kind and sign, recursion, calls that are left or wait. */
#define _GNU_SOURCE
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#define CASE __attribute__((noinline, noclone, noipa))
#define RECURSIVE CASE __attribute__((optimize("no-optimize-sibling-calls")))
struct small { long one, two; };
struct large { char bytes[200]; };
CASE int int_add(int a, int b) { return a + b; }
CASE int int_sub(int a, int b) { return a - b; }
CASE int int_mul(int a, int b) { return a * b; }
CASE int int_div(int a, int b) { return a / b; }
RECURSIVE int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
RECURSIVE long depth(long n) { return n ? depth(n - 1) + 1 : 0; }
CASE struct small return_small(long n) { return (struct small){n, -n}; }
CASE struct large return_large(int n) { struct large all; memset(&all, n, sizeof all); return all; }
CASE long double return_long_double(int n) { return n / 4.0L; }
CASE double return_double(int n) { return n / 8.0; }
CASE const char *return_text(int n) { return n ? "some" : "none"; }
CASE void *return_pointer(int n) { return n ? (void *)0x7f0012345678 : NULL; }
CASE char return_char(int n) { return (char)n; }
CASE long on_stack(int n) { char *bytes = alloca(n); memset(bytes, 1, n); long sum = 0; for (int i = 0; i < n; i++) sum += bytes[i]; return sum; }
static jmp_buf env;
CASE int leaves(int n) { if (n) longjmp(env, n); return 5; }
CASE int calls_leaving(int n) { return leaves(n) + 1; }
CASE int tries(int n) { int got = setjmp(env); return got ? 100 + got : calls_leaving(n); }
static volatile int handled;
CASE void in_handler(int signal) { (void)signal; handled += int_add(handled, 1); }
CASE int interrupted(int n) { raise(SIGUSR1); return handled + n; }
static ucontext_t home, other;
static char stack[1 << 16];
CASE int waits(int n) { swapcontext(&other, &home); return n * 2; }
static int got;
static void coroutine(void) { got = waits(21); }
CASE int jumps(int n) { return int_add(n, 1); }
int main(void) {
    printf("%d %d %d %d\n", int_add(-1, 2), int_sub(1, 2), int_mul(3, 4), int_div(4, -2));
    printf("%d %ld\n", fib(12), depth(200));
    struct small two = return_small(6);
    struct large all = return_large(7);
    printf("%ld %ld %d %Lf %f\n", two.one, two.two, all.bytes[199], return_long_double(10), return_double(-3));
    printf("%s %s %p %d\n", return_text(0), return_text(1), return_pointer(1), return_char(-2));
    printf("%ld %ld\n", on_stack(1000), on_stack(70000));
    printf("%d %d %d\n", tries(0), tries(1), tries(2));
    signal(SIGUSR1, in_handler);
    printf("%d %d\n", interrupted(1), interrupted(2));
    getcontext(&other);
    other.uc_stack.ss_sp = stack; other.uc_stack.ss_size = sizeof stack; other.uc_link = &home;
    makecontext(&other, coroutine, 0);
    swapcontext(&home, &other); int between = int_mul(5, 5); swapcontext(&home, &other);
    printf("%d %d %d\n", between, got, jumps(8));
    fflush(stdout);
    pid_t child = fork();
    if (!child) { printf("child %d\n", int_sub(10, 4)); fflush(stdout); _exit(fib(5)); }
    int status; waitpid(child, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
    return 0;
}
