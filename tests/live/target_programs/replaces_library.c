// Loads a library; when asked, another one in its place, which has an int3 where the first one's function was.
// Built three times: with FIRST and SECOND as the libraries.
#if defined(FIRST)
__asm__(".p2align 12\n.globl probed\n.type probed,@function\nprobed: push %rbx\nmov %edi,%ebx\nlea 1(%rbx),%eax\npop %rbx\nret\n"
        ".size probed,.-probed");
#elif defined(SECOND)
__asm__(".p2align 12\n.globl other\n.type other,@function\nother: int3\nmov $7,%eax\nret\n.size other,.-other");
#else
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
static char byte;
int main(int argc, char **argv) {
    (void)argc;
    setvbuf(stdout, 0, _IOLBF, 0);
    void *library = dlopen(argv[1], RTLD_NOW);
    int (*probed)(int) = (int (*)(int))dlsym(library, "probed");
    printf("%d\n", probed(1));
    read(0, &byte, 1);
    dlclose(library);
    library = dlopen(argv[2], RTLD_NOW);
    unsigned char *other = dlsym(library, "other");
    puts(other == (unsigned char *)probed ? "same" : "elsewhere");
    read(0, &byte, 1);
    printf("%x\n", *other);
}
#endif
