/* A small server without a network, for docs/tutorial.md: it looks up prices of orders, and some orders are slow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct order { int customer; int items; char what[16]; };
static volatile int sold;
__attribute__((noinline)) int price(const struct order *order) {
    int cents = 0;
    for (int rounds = order->items > 8 ? 20000 : 200, n = 0; n < rounds; n++) cents += n % (order->customer + 7);
    __asm__ volatile("" : "+r"(cents));
    return cents % 10000;
}
__attribute__((noinline)) int serve(struct order *order) {
    char *receipt = malloc(32 + order->items);
    int cents = price(order);
    if (snprintf(receipt, 32, "%s %d", order->what, cents) < 0) return -1;
    sold += receipt[0];
    free(receipt);
    if (write(1, "", 0) < 0) return -1;
    return order->items > 8 ? -1 : cents;
}
int main(void) {
    static const char *const names[] = {"tea", "coffee", "bread"};
    puts("ready");
    fflush(stdout);
    for (int n = 0;; n++) {
        struct order order = {n % 5, n % 10, ""};
        strcpy(order.what, names[n % 3]);
        serve(&order);
        usleep(200);
    }
}
