/* truths N: the Nth of thirteen small jobs, each in many calls of small functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define CALL __attribute__((noinline, noclone, noipa))

static volatile unsigned long kept;
static unsigned long state = 1;
static unsigned char table[1 << 20];
static double left[64][64], right[64][64], product[64][64];
struct link { struct link *next; unsigned long value; };

CALL unsigned long tiny(unsigned long x) { return x * 3 + 1; }
CALL void loop(void) { for (int n = 0; n < 1000000; n++) kept = tiny(kept); }

CALL long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
CALL void recursion(void) { for (int n = 0; n < 10; n++) kept += fib(22); }

CALL long ackermann(long m, long n) {
    if (!m) return n + 1;
    return n ? ackermann(m - 1, ackermann(m, n - 1)) : ackermann(m - 1, 1);
}
CALL void deep(void) { kept += ackermann(2, 600); }

CALL unsigned long random_number(void) { return state = state * 6364136223846793005 + 1442695040888963407, state >> 33; }
CALL int compared(const void *one, const void *other) {
    unsigned long a = *(const unsigned long *)one, b = *(const unsigned long *)other;
    return (a > b) - (a < b);
}
CALL void sorting(void) {
    static unsigned long numbers[50000];
    for (int n = 0; n < 50000; n++) numbers[n] = random_number();
    qsort(numbers, 50000, sizeof *numbers, compared);
}

CALL int is_set(unsigned n) { return table[n]; }
CALL void set(unsigned n) { table[n] = 1; }
CALL void sieve(void) {
    for (unsigned n = 2; n < 1000; n++)
        if (!is_set(n)) for (unsigned m = n * n; m < sizeof table / 4; m += n) set(m);
}

CALL int is_safe(const int *rows, int column, int row) {
    for (int n = 0; n < column; n++)
        if (rows[n] == row || abs(rows[n] - row) == column - n) return 0;
    return 1;
}
CALL int queens(int *rows, int column) {
    int found = 0;
    if (column == 8) return 1;
    for (int row = 0; row < 8; row++)
        if (is_safe(rows, column, row)) { rows[column] = row; found += queens(rows, column + 1); }
    return found;
}
CALL void board(void) { int rows[8]; for (int n = 0; n < 20; n++) kept += queens(rows, 0); }

CALL double dot(int row, int column) {
    double sum = 0;
    for (int n = 0; n < 64; n++) sum += left[row][n] * right[n][column];
    return sum;
}
CALL void matrix(void) {
    for (int times = 0; times < 20; times++)
        for (int row = 0; row < 64; row++)
            for (int column = 0; column < 64; column++) product[row][column] += dot(row, column);
}

CALL unsigned crc(unsigned sum, unsigned char byte) {
    sum ^= byte;
    for (int n = 0; n < 8; n++) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
    return sum;
}
CALL void checksum(void) { unsigned sum = ~0u; for (int n = 0; n < 400000; n++) sum = crc(sum, table[n]); kept += sum; }

CALL struct link *pushed(struct link *list, unsigned long value) {
    struct link *made = malloc(sizeof *made);
    made->next = list, made->value = value;
    return made;
}
CALL struct link *popped(struct link *list) { struct link *next = list->next; kept += list->value; free(list); return next; }
CALL void lists(void) {
    struct link *list = 0;
    for (int n = 0; n < 200000; n++) list = pushed(list, n);
    while (list) list = popped(list);
}

CALL unsigned long hashed(const char *text) {
    unsigned long sum = 5381;
    for (; *text; text++) sum = sum * 33 + *text;
    return sum;
}
CALL void texts(void) { char text[32]; for (int n = 0; n < 100000; n++) { sprintf(text, "number %d", n); kept += hashed(text); } }

CALL int escapes(double x, double y) {
    double a = 0, b = 0;
    int n = 0;
    for (; n < 100 && a * a + b * b < 4; n++) { double c = a * a - b * b + x; b = 2 * a * b + y, a = c; }
    return n;
}
CALL void fractal(void) { for (int n = 0; n < 40000; n++) kept += escapes(n % 200 / 100.0 - 1.5, n / 200 / 100.0 - 1); }

CALL int is_odd(int n);
CALL int is_even(int n) { return n ? is_odd(n - 1) + 0 : 1; }
CALL int is_odd(int n) { return n ? is_even(n - 1) + 0 : 0; }
CALL void parity(void) { for (int n = 0; n < 1000; n++) { int even = is_even(n); kept += even; } }

CALL unsigned long added(unsigned long x) { return x + 7; }
CALL unsigned long shifted(unsigned long x) { return x << 1 ^ x >> 5; }
CALL void pointers(void) {
    unsigned long (*volatile steps[])(unsigned long) = {added, shifted, tiny};
    for (int n = 0; n < 600000; n++) kept = steps[n % 3](kept);
}

static void (*const jobs[])(void) = {loop,     recursion, deep,  sorting, sieve,  board,   matrix,
                                     checksum, lists,     texts, fractal, parity, pointers};
int main(int count, char **words) {
    unsigned number = count > 1 ? atoi(words[1]) : 0;
    if (number >= sizeof jobs / sizeof *jobs) return 1;
    jobs[number]();
    return 0;
}
