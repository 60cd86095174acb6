/* One function under three names, and one that is chosen at load time. */
__attribute__((noipa)) int work(int n) { return n * 3 + 1; }
int same(int n) __attribute__((alias("work")));
int also(int n) __attribute__((alias("work")));

__attribute__((noipa)) static int plain(int n) { return n * 5 + 1; }
static int (*choose(void))(int) { return plain; }
int chosen(int n) __attribute__((ifunc("choose")));

int main(void) {
    int n = 0;
    for (int i = 0; i < 1000; i++) n = chosen(same(n)) & 1023;
    return n < 0;
}
