/* Reads from /dev/zero by libc's read: each power of two from 1024 to 65536 as often as its position, COUNT times. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static char buffer[65536];

int main(int argc, char **argv)
{
    char path[] = "/dev/zero"; /* on the stack, which is there when the kernel reads it */
    int file = open(path, O_RDONLY);
    long count = argc > 1 ? atol(argv[1]) : 1;

    for (long round = 0; round < count; round++)
        for (int power = 10; power <= 16; power++)
            for (int again = 9; again < power; again++)
                if (read(file, buffer, 1 << power) != 1 << power)
                    return 1;
    return 0;
}
