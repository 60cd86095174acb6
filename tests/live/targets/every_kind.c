/* A program without a C library that does the same each time: loops, recursion, tables, pointers, rep, setjmp.
 * Its exit status is a checksum. Argument: none. It makes two system calls. */
typedef unsigned long u64;
typedef unsigned char u8;
#define SEPARATE __attribute__((noinline, noclone))
static u8 buffer[600], other[600];
static void *jump_back[5];
static volatile u64 seed = 1;

long call_kernel(long a, long b, long c, long number);
/* What every C library has, and calls that are made in the program borrow: syscall; ret and a signal's return. */
__asm__(".globl call_kernel\n.type call_kernel, @function\ncall_kernel: mov %rcx, %rax\n\tsyscall\n\tret\n"
        ".size call_kernel, .-call_kernel\n"
        ".type restore, @function\nrestore: mov $15, %rax\n\tsyscall\n\tud2\n.size restore, .-restore\n");
SEPARATE u64 next(void) { return seed = seed * 6364136223846793005ul + 1442695040888963407ul; }
SEPARATE u64 fibonacci(u64 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
SEPARATE u64 by_table(u64 n) {
    switch (n % 12) {
    case 0: return n * 3;
    case 1: return n ^ 0x55;
    case 2: return n << 3 | 1;
    case 3: return n / 7;
    case 4: return next() & 15;
    case 5: return ~n;
    case 7: return n + by_table(n - 1);
    case 8: return n % 11;
    case 9: return -n;
    case 11: return n * n;
    default: return 0;
    }
}
SEPARATE void fill(u8 *to, u8 with, u64 size) { __asm__ volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(with) : "memory"); }
SEPARATE void copy(u8 *to, const u8 *from, u64 size) {
    u64 words = size / 8, rest = size % 8;
    __asm__ volatile("rep movsq\n\tmov %3, %2\n\trep movsb" : "+D"(to), "+S"(from), "+c"(words) : "r"(rest) : "memory");
}
SEPARATE u64 scan(const u8 *in, u8 what, u64 size) {
    const u8 *at = in;
    __asm__ volatile("repne scasb" : "+D"(at), "+c"(size) : "a"(what) : "memory", "cc");
    return (u64)(at - in);
}
SEPARATE int differ(const u8 *a, const u8 *b, u64 size) {
    u8 unequal;
    __asm__ volatile("cmp %%rax, %%rax\n\trepe cmpsb\n\tsetne %3" : "+S"(a), "+D"(b), "+c"(size), "=q"(unequal) : : "memory", "cc");
    return unequal;
}
SEPARATE u64 backwards(u64 n) {
    u64 sum = 0;
    __asm__ volatile("1: add %1, %0\n\tloop 1b\n\tjrcxz 2f\n\tud2\n2:" : "+r"(sum), "+c"(n) : : "cc");
    return sum;
}
SEPARATE void far_away(u64 n) {
    if (n == 0) __builtin_longjmp(jump_back, 1);
    far_away(n - 1);
    __asm__ volatile("" ::: "memory");
}
SEPARATE u64 comes_back(u64 n) {
    volatile u64 times = 0;
    if (__builtin_setjmp(jump_back)) return times + n;
    times = 3;
    far_away(n);
    return 0;
}
SEPARATE u64 tail(u64 n, u64 sum);
SEPARATE u64 head(u64 n, u64 sum) { return n ? tail(n - 1, sum * 3 + n) : sum; }
SEPARATE u64 tail(u64 n, u64 sum) { return n ? head(n - 1, sum ^ n) : sum + 1; }
SEPARATE double curve(double x) {
    double y = 1, sum = 0;
    for (int i = 1; i < 20; i++) { y *= x / i; sum += i & 1 ? y : -y; }
    return sum;
}
SEPARATE u64 gcd(u64 a, u64 b) { while (b) { u64 c = a % b; a = b; b = c; } return a; }
static int above(u64 a, u64 b) { return a > b; }
static int below(u64 a, u64 b) { return a < b; }
SEPARATE void sort(u64 *of, int count, int (*precedes)(u64, u64)) {
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && precedes(of[j], of[j - 1]); j--) { u64 t = of[j]; of[j] = of[j - 1]; of[j - 1] = t; }
}
SEPARATE u64 all_of_it(void) {
    u64 result = fibonacci(12), numbers[24];
    for (u64 i = 0; i < 60; i++) result = result * 31 + by_table(i + (next() & 7));
    for (u64 i = 0; i < 30; i++) {
        fill(buffer, (u8)i, 20 * i);
        copy(other, buffer, 19 * i);
        result += scan(other, 255, 8 * i + 1) + (u64)differ(buffer, other, 17 * i) + comes_back(i % 5);
    }
    for (u64 i = 1; i < 20; i++) result += backwards(i) + head(i, i) + gcd(i * 36, 60) + (u64)(curve((double)i / 4) * 1000);
    for (int i = 0; i < 24; i++) numbers[i] = next() >> 40;
    sort(numbers, 24, above);
    result += numbers[0];
    sort(numbers, 24, below);
    return result + numbers[3];
}
__attribute__((used)) static void begin(void) {
    u64 result = all_of_it();
    call_kernel(1, (long)"done\n", 5, 1);
    call_kernel((long)(result & 63), 0, 0, 231);
    __builtin_unreachable();
}
__asm__(".globl _start\n.type _start, @function\n_start: xor %ebp, %ebp\n\tand $-16, %rsp\n\tcall begin\n\thlt\n.size _start, .-_start\n");
