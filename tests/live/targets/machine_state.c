/* State that must survive the entry: red zone, x87, AVX, AVX-512, flags live from the caller into the function. */
#include "protocol.h"
#include <immintrin.h>
TALLY(red_zone); TALLY(red_zone_entry); TALLY(flags_jcc); TALLY(flags_adc); TALLY(x87); TALLY(x87_stack); TALLY(avx); TALLY(avx512);
long red_zone(long), red_zone_entry(long), call_red_zone_entry(long), call_flags_jcc(long, long), call_flags_adc(long, long);
void flags_jcc(void), flags_adc(void);
asm(".p2align 4\n"
    FUNCTION(red_zone) "mov %rdi,-8(%rsp)\nnopl 0(%rax,%rax,1)\nmov -8(%rsp),%rax\nret\n" END(red_zone)
    ".p2align 4\n"
    FUNCTION(red_zone_entry) "mov -8(%rsp),%rax\nadd -120(%rsp),%rax\nret\n" END(red_zone_entry)   /* reads what the caller left below rsp */
    FUNCTION(call_red_zone_entry) "mov %rdi,-16(%rsp)\nmov %rdi,-128(%rsp)\ncall red_zone_entry\nret\n" END(call_red_zone_entry)
    ".p2align 4\n"
    FUNCTION(flags_jcc) "jb 1f\nmov $1,%eax\nret\n1: mov $2,%eax\nret\n" END(flags_jcc)
    FUNCTION(call_flags_jcc) "cmp %rsi,%rdi\ncall flags_jcc\nret\n" END(call_flags_jcc)
    ".p2align 4\n"
    FUNCTION(flags_adc) "adc $0,%rax\nret\n" END(flags_adc)
    FUNCTION(call_flags_adc) "mov %rdi,%rax\nadd %rsi,%rax\ncall flags_adc\nret\n" END(call_flags_adc)
    ".p2align 4\n");
PROBED long double x87(long double a, long double b) { return a * b + 0.125L; }
/* fills the whole x87 stack, calls a function that exchanges two of it */
void x87_stack(void);
double call_x87_stack(void);
asm(".p2align 4\n" FUNCTION(x87_stack) "fxch %st(1)\nret\n" END(x87_stack)
    FUNCTION(call_x87_stack)
    "fld1\nfldpi\nfldl2e\nfldl2t\nfldlg2\nfldln2\nfld1\nfldz\ncall x87_stack\n"       /* st0 = 1, st1 = 0 */
    "fsubp %st,%st(1)\nfaddp\nfaddp\nfaddp\nfaddp\nfaddp\nfaddp\nfstpl -8(%rsp)\nmovsd -8(%rsp),%xmm0\nret\n" END(call_x87_stack) ".p2align 4\n");
static double x87_reference;
__attribute__((target("avx2"))) PROBED __m256i avx(__m256i a, __m256i b) { return _mm256_add_epi64(_mm256_slli_epi64(a, 3), b); }
__attribute__((target("avx512f"))) PROBED __m512i avx512(__m512i a, __m512i b) {
    return _mm512_mask_add_epi64(a, _mm512_cmplt_epi64_mask(a, b), a, b);
}
__attribute__((target("avx2"))) static void use_avx(long x) {
    __m256i a = _mm256_set_epi64x(x, x + 1, x + 2, x + 3), b = _mm256_set1_epi64x(x * 3);
    CALLED(avx);
    long r[4];
    _mm256_storeu_si256((__m256i *)r, avx(a, b));
    RETURNED(avx);
    for (int i = 0; i < 4; i++) check(r[i] == (x + 3 - i) * 8 + x * 3, "avx");
}
__attribute__((target("avx512f"))) static void use_avx512(long x) {
    long in[8], r[8];
    for (int i = 0; i < 8; i++) in[i] = x + i * ((i & 1) ? -100 : 100);
    CALLED(avx512);
    _mm512_storeu_si512(r, avx512(_mm512_loadu_si512(in), _mm512_set1_epi64(x + 5)));
    RETURNED(avx512);
    for (int i = 0; i < 8; i++) check(r[i] == (in[i] < x + 5 ? in[i] + x + 5 : in[i]), "avx512");
}
static int have_avx2, have_avx512;
static long next;
static void one_round(void) {
    long x = ++next;
    COUNTED(red_zone, check(red_zone(x) == x, "red_zone"));
    COUNTED(red_zone_entry, check(call_red_zone_entry(x) == 2 * x, "red_zone_entry"));
    COUNTED(flags_jcc, check((int)call_flags_jcc(x, 500) == ((unsigned long)x < 500 ? 2 : 1), "flags_jcc"));
    COUNTED(flags_adc, check(call_flags_adc(-x, x + (x & 1)) == (x & 1) + 1, "flags_adc"));
    COUNTED(x87, check(x87(x, 3.0L) == x * 3.0L + 0.125L, "x87"));
    COUNTED(x87_stack, check(call_x87_stack() == x87_reference, "x87_stack"));
    if (have_avx2) use_avx(x);
    if (have_avx512) use_avx512(x);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    have_avx2 = __builtin_cpu_supports("avx2");
    have_avx512 = __builtin_cpu_supports("avx512f");
    x87_reference = call_x87_stack();
    USE_TALLY(red_zone); USE_TALLY(red_zone_entry); USE_TALLY(flags_jcc); USE_TALLY(flags_adc); USE_TALLY(x87); USE_TALLY(x87_stack);
    if (have_avx2) USE_TALLY(avx);
    if (have_avx512) USE_TALLY(avx512);
}
