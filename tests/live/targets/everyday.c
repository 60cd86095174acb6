/* What most programs do all day: open, read and write files, allocate, wait for one another. Runs until it is killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct client { int fd; long port; };
struct request { struct client *client; const char *path; char method[8]; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int sink;
__attribute__((noipa)) int serve(struct request *request, int attempt) {
    char text[700];
    int fd = open(request->path, O_RDONLY);
    if (fd < 0) return -1;
    long total = 0, found;
    while ((found = read(fd, text, 100 + 100 * attempt)) > 0) total += found;
    close(fd);
    int null = open("/dev/null", O_WRONLY);
    if (write(null, text, attempt * 50 + 1) < 0) return -1;
    close(null);
    char *copy = malloc(10 + total);
    strcpy(copy, request->method);
    sink += copy[0];
    free(copy);
    return (int)total;
}
static void *work(void *name) {
    pthread_setname_np(pthread_self(), name);
    for (int n = 0;; n++) {
        struct client client = {n % 5, 8000 + n % 3};
        struct request request = {&client, n % 4 ? "/etc/passwd" : "/nowhere", "GET"};
        pthread_mutex_lock(&lock);
        serve(&request, n % 6);
        pthread_mutex_unlock(&lock);
        usleep(500);
    }
    return 0;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, "reader");
    puts("ready");
    fflush(stdout);
    work("main");
}
