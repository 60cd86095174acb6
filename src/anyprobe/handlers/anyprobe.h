/* Handlers in C: int handler(struct anyprobe_ctx *ctx).
 *
 * A handler runs in the program, on the stack of the thread that came by. It may call nothing of the program, and reads
 * its memory by anyprobe_read and anyprobe_text alone, which answer bad addresses with an error. What it keeps is in
 * ctx->state, memory that all threads and the controller share; words of it are changed by atomic instructions.
 * What it returns, and what it writes to ctx, is not used. Of handlers given as source, members of ctx that the source
 * does not name are not filled in.
 */
#ifndef ANYPROBE_H
#define ANYPROBE_H

#define ANYPROBE_ABI 1

struct anyprobe_ctx {
    /* The registers at the site. At a function's entry, rdi, rsi, rdx, rcx, r8 and r9 are the first six parameters that
     * are whole numbers or pointers; at its return, rax is the result. */
    unsigned long rdi, rsi, rdx, rcx, r8, r9;
    unsigned long rax, rbx, rbp, rsp, r10, r11, r12, r13, r14, r15;
    unsigned long tid, pid, cpu;
    unsigned long now;    /* nanoseconds, from the time stamp counter; only differences mean something */
    unsigned long caller; /* the return address, at entries and returns */
    void *state;          /* zeros at first; as many bytes as the handler was made with */
    unsigned long read_, read_text_;
};

/* Copies size bytes of the program's memory; returns 0, or another number if the address is bad. */
static inline __attribute__((always_inline)) long anyprobe_read(struct anyprobe_ctx *ctx, void *to, const void *from,
                                                               unsigned long size) {
    return ((long (*)(void *, const void *, unsigned long))ctx->read_)(to, from, size);
}

/* Copies a text up to its NUL, at most limit bytes, without a NUL; returns its length, or -1 if the address is bad. */
static inline __attribute__((always_inline)) long anyprobe_text(struct anyprobe_ctx *ctx, char *to, const char *from,
                                                               unsigned long limit) {
    return ((long (*)(char *, const char *, unsigned long))ctx->read_text_)(to, from, limit);
}

/* The parameter at an index above 5, at a function's entry; which must be known to be there. */
static inline __attribute__((always_inline)) unsigned long anyprobe_on_stack(struct anyprobe_ctx *ctx, int index) {
    unsigned long value = 0;
    anyprobe_read(ctx, &value, (const void *)(ctx->rsp + 8 * (unsigned long)(index - 5)), sizeof value);
    return value;
}

static inline __attribute__((always_inline)) unsigned long anyprobe_add(unsigned long *word, unsigned long amount) {
    return __atomic_fetch_add(word, amount, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
extern "C"
#endif
int handler(struct anyprobe_ctx *ctx) __attribute__((flatten, visibility("hidden")));

#endif
