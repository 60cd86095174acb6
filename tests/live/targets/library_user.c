/* Uses the C library in ways that do the same each time; its exit status is a checksum. For static linking. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
static unsigned long sum;
static void take(const char *text) { for (; *text; text++) sum = sum * 31 + (unsigned char)*text; }
static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static jmp_buf back;
__attribute__((noinline)) static void leave(int depth) { if (!depth) longjmp(back, 7); leave(depth - 1); __asm__ volatile(""); }
int main(void) {
    char text[400], *words[40];
    for (int i = 0; i < 12; i++) {
        snprintf(text, sizeof text, "%d %08x %-6s|%+.3f|%g|%'ld|%c%%", i * 977, i * i * 31, "ab", i / 7.0, pow(i, 9.5), i * 12345678l, 'a' + i);
        take(text);
        sum += (unsigned long)strtod(text + 2, 0) + strtoul(text, 0, 16) + (unsigned long)(sin(i) * 1000 + log1p(i) * 10);
    }
    int count = 0;
    char list[] = "the quick brown fox jumps over the lazy dog and then some more words follow until there are enough";
    for (char *rest = 0, *word = strtok_r(list, " ", &rest); word; word = strtok_r(0, " ", &rest)) words[count++] = strdup(word);
    qsort(words, (size_t)count, sizeof *words, by_text);
    for (int i = 0; i < count; i++) {
        take(words[i]);
        void *found = bsearch(&words[i], words, (size_t)count, sizeof *words, by_text);
        sum += found ? 1 : 1000;
        sum += (unsigned long)(strstr("a haystack with the dog in it", words[i]) != 0) + strlen(words[i]) + (memchr(words[i], 'e', strlen(words[i])) != 0);
    }
    for (volatile int i = 0; i < 5; i++) if (setjmp(back) == 0) leave(i); else sum++;
    for (size_t size = 1; size < 300000; size = size * 3 + 1) {
        unsigned char *one = malloc(size), *other = calloc(1, size);
        memset(one, (int)size, size);
        memcpy(other, one, size);
        sum += (unsigned)memcmp(one, other, size) + other[size / 2];
        one = realloc(one, size * 2);
        memmove(one + size / 3, one, size);
        sum += one[size];
        free(one);
        free(other);
    }
    hcreate(30);
    for (int i = 0; i < count; i++) { ENTRY e = {words[i], words[i]}; sum += hsearch(e, ENTER) != 0; }
    hdestroy();
    for (int i = 0; i < count; i++) free(words[i]);
    wchar_t wide[30];
    sum += mbstowcs(wide, "wide enough", 30) + wcslen(wide);
    take(strerror(ENOENT));
    printf("%lx\n", sum);
    return (int)(sum & 63);
}
