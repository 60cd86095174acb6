/* USDT markers as sys/sdt.h makes them, written out: a nop, and a note that names its place.
 *
 * MARKER(provider, name, semaphore, arguments, operands...): arguments as they are to stand in the note, with %0 for
 * the first operand, and so on; %% before registers. semaphore: the name of a variable, or 0.
 */
#ifndef MARKERS_H
#define MARKERS_H
#define SEMAPHORE(name) __extension__ unsigned short name __attribute__((section(".probes"), used)) = 0
#define MARKER_NOTE(provider, name, semaphore, arguments)                                                              \
    "990: nop\n"                                                                                                       \
    ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n"                            \
    "991: .asciz \"stapsdt\"\n992: .balign 4\n"                                                                        \
    "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte " semaphore "\n"                                                  \
    ".asciz \"" provider "\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n994: .balign 4\n.popsection\n"            \
    ".ifndef _.stapsdt.base\n"                                                                                         \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                                            \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n"                \
    ".popsection\n.endif\n"
#define MARKER(provider, name, semaphore, arguments, ...)                                                              \
    __asm__ volatile(MARKER_NOTE(provider, name, semaphore, arguments)::__VA_ARGS__)
#endif
