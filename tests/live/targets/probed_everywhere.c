/* Calls a function and passes two USDT markers COUNT times; the first asks its semaphore whether anybody listens,
   the second has arguments in a register, in memory, as a number, and of the file. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((section(".probes"))) volatile unsigned short listening_semaphore;

__attribute__((noinline)) long work(int number, long more)
{
    __asm__ volatile("" : : "r"(number), "r"(more) : "memory");
    return number + more;
}

__attribute__((noinline)) void marked(int number)
{
    __asm__ volatile("1: nop\n"
                     ".pushsection .note.stapsdt, \"\", \"note\"\n"
                     ".balign 4\n"
                     ".4byte 3f-2f, 5f-4f, 3\n"
                     "2: .asciz \"stapsdt\"\n"
                     "3: .balign 4\n"
                     "4: .8byte 1b, 0, listening_semaphore\n"
                     ".asciz \"everywhere\"\n"
                     ".asciz \"passed\"\n"
                     ".asciz \"-4@%0\"\n"
                     "5: .balign 4\n"
                     ".popsection\n" : : "r"(number));
}

static volatile long rounds;

__attribute__((noinline)) void told(int number, long more)
{
    volatile long kept = more;

    rounds++;
    __asm__ volatile("1: nop\n"
                     ".pushsection .note.stapsdt, \"\", \"note\"\n"
                     ".balign 4\n"
                     ".4byte 3f-2f, 5f-4f, 3\n"
                     "2: .asciz \"stapsdt\"\n"
                     "3: .balign 4\n"
                     "4: .8byte 1b, 0, 0\n"
                     ".asciz \"everywhere\"\n"
                     ".asciz \"told\"\n"
                     ".asciz \"-4@%0 -8@%1 -4@%2 8@rounds(%%rip) 8@$rounds\"\n"
                     "5: .balign 4\n"
                     ".popsection\n" : : "r"(number), "m"(kept), "i"(-5));
}

int main(int argc, char **argv)
{
    long sum = 0, heard = 0, count = argc > 1 ? atol(argv[1]) : 1;

    for (long each = 0; each < count; each++) {
        sum += work((int)each, 1000);
        marked((int)each);
        told((int)-each, each * each);
        heard += listening_semaphore != 0;
    }
    printf("%ld %ld\n", sum, heard);
    return 0;
}
