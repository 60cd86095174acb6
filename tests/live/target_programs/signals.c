// Adds up what queued signals carry, and checks who sent them.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile long count, sum;
static long sender;
static void take(int number, siginfo_t *info, void *context) {
    if (info->si_code != SI_QUEUE || info->si_pid != sender) { dprintf(1, "FAILED: code %d pid %d\n", info->si_code, info->si_pid); _exit(1); }
    count++;
    sum += info->si_value.sival_int;
}
static void report(int number) { dprintf(1, "%ld %ld\n", count, sum); }
int main(int argc, char **argv) {
    sender = atol(argv[1]);
    struct sigaction action = {.sa_sigaction = take, .sa_flags = SA_SIGINFO | SA_RESTART}, other = {.sa_handler = report};
    sigaction(SIGRTMIN, &action, 0);
    sigaction(SIGUSR1, &other, 0);
    dprintf(1, "ready\n");
    for (;;) pause();
}
