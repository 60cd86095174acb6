/* Processes that write to one file at a time: each waits for the lock of its inode, or that of the file's position. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char block[1 << 19];

int main(int count, char **arguments)
{
	int shared = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600), times = atoi(arguments[2]), i;

	if (count < 3 || shared < 0)
		return 1;
	for (i = 0; i < 3; i++)
		fork();
	while (times--)
		if (pwrite(shared, block, sizeof block, 0) != sizeof block || lseek(shared, 0, SEEK_SET) ||
		    write(shared, block, sizeof block) != sizeof block)
			return 1;
	while (wait(NULL) > 0)
		;
	return 0;
}
