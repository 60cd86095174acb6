/* Threads that wait for locks of four kinds, again and again, until the program is told to let them go.
   It prints "ready", and "asleep" once they wait, and takes a line for each. */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_rwlock_t written = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER, guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static int may_go;
static void *waits_to_read(void *unused) {
    if (pthread_rwlock_rdlock(&written) || pthread_rwlock_unlock(&written)) abort();
    return unused;
}
static void *waits_for_semaphore(void *unused) {
    if (sem_wait(&semaphore)) abort();
    return unused;
}
static void *waits_for_mutex(void *unused) {
    if (pthread_mutex_lock(&taken) || pthread_mutex_unlock(&taken)) abort();
    return unused;
}
static void *waits_for_condition(void *unused) {
    pthread_mutex_lock(&guard);
    while (!may_go) if (pthread_cond_wait(&changed, &guard)) abort();
    pthread_mutex_unlock(&guard);
    return unused;
}
static void *(*const waits[])(void *) = {waits_to_read, waits_for_semaphore, waits_for_mutex, waits_for_condition};
int main(void) {
    char line[8];
    sem_init(&semaphore, 0, 0);
    while (puts("ready"), fflush(stdout), fgets(line, 8, stdin)) {
        pthread_t threads[4];
        may_go = 0;
        pthread_rwlock_wrlock(&written);
        pthread_mutex_lock(&taken);
        for (int i = 0; i < 4; i++) if (pthread_create(&threads[i], 0, waits[i], 0)) abort();
        usleep(100000);
        puts("asleep");
        fflush(stdout);
        if (!fgets(line, 8, stdin)) return 1;
        pthread_rwlock_unlock(&written);
        sem_post(&semaphore);
        pthread_mutex_unlock(&taken);
        pthread_mutex_lock(&guard);
        may_go = 1;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&guard);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    }
    return 0;
}
