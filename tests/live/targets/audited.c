/* Asks the kernel for what audits are about: by functions, inside the C library, by syscall(2), in threads, in
   children, and by what does not come back. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static pthread_barrier_t all;

static void *opens(void *path) {
    for (int i = 0; i < 50; i++) {
        int fd = open(path, O_RDONLY);
        if (fd >= 0) close(fd);
    }
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all); /* setuid is made by each thread that there is, in a handler of a signal */
    return 0;
}

__attribute__((noinline)) static void opens_by_name(const char *name) {
    close(open(name, O_RDWR | O_CREAT, 0640));
}

int main(int argc, char **words) {
    if (argc < 2 || chdir(words[1])) return 1;
    opens_by_name("made");
    if (open("missing", O_RDONLY) >= 0) return 2;
    FILE *file = fopen("made", "r");
    fclose(file);
    closedir(opendir("."));
    close(syscall(SYS_openat, AT_FDCWD, "made", O_RDONLY));
    if (open((char *)8, O_RDONLY) >= 0 || errno != EFAULT) return 3;
    pthread_t threads[4];
    pthread_barrier_init(&all, 0, 5);
    for (int i = 0; i < 4; i++) pthread_create(threads + i, 0, opens, i % 2 ? "made" : "missing");
    pthread_barrier_wait(&all); /* no signal interrupts an open, whose handler would not be interrupted by another */
    if (setuid(getuid())) return 4;
    pthread_barrier_wait(&all);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!connect(fd, (struct sockaddr *)&address, sizeof address)) return 5;
    close(fd);
    struct sockaddr_un local = {AF_UNIX, "no/socket"};
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (!connect(fd, (struct sockaddr *)&local, sizeof local)) return 6;
    close(fd);
    char *true_words[] = {"true", "one word", "--another", 0};
    char *no_words[] = {"nothing", 0};
    pid_t child = fork();
    if (!child) {
        opens_by_name("childs");
        execv("/no/such", no_words);
        execv("/bin/true", true_words);
        _exit(7);
    }
    waitpid(child, 0, 0);
    if (posix_spawn(&child, "/bin/true", 0, 0, true_words, environ)) return 8;
    waitpid(child, 0, 0);
    rename("made", "renamed");
    unlink("renamed");
    return 0;
}
