/* Makes a system call that hardly any other program makes, from several threads: system_calls NUMBER COUNT THREADS. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static long number, count;

static void *calls(void *unused)
{
    for (long each = 0; each < count; each++)
        syscall(number, 0, 0, 0);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t threads[64];
    int many = argc > 3 ? atoi(argv[3]) : 1;

    number = atol(argv[1]);
    count = atol(argv[2]);
    for (int each = 0; each < many; each++)
        pthread_create(&threads[each], 0, calls, 0);
    for (int each = 0; each < many; each++)
        pthread_join(threads[each], 0);
    return 0;
}
