/* A program that begins with faults on purpose: it looks where they were, has them thrown as exceptions, and goes on. */
#include <cstdio>
#include <cstring>
#include <csignal>
#include <stdexcept>
#include <ucontext.h>
extern "C" __attribute__((noinline, noclone)) int reads(int *place, int number) { return place[number] + number; }
static volatile int elsewhere;
static void handler(int, siginfo_t *, void *context) {
    unsigned long pc = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (pc < (unsigned long)reads || pc >= (unsigned long)reads + 32) elsewhere++;
    throw std::runtime_error("fault");
}
int main() {
    struct sigaction action;
    std::memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    int thrown = 0;
    for (int i = 0; i < 10; i++) {
        try { reads(nullptr, i); } catch (const std::exception &) { thrown++; }
    }
    std::printf("%d thrown, %d elsewhere\n", thrown, elsewhere);
    return thrown == 10 && !elsewhere ? 42 : 1;
}
