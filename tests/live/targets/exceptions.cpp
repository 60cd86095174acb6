// C++ exceptions thrown by a probed function and through one.
#include "protocol.h"
#include <stdexcept>
#include <string>
extern "C" {
TALLY(thrower); TALLY(passer); TALLY(catcher);
static int destroyed;
struct guard { ~guard() { destroyed++; } };

PROBED int thrower(int x) {
    CALLED(thrower);
    if (x & 1) throw std::runtime_error("odd " + std::to_string(x));
    RETURNED(thrower);
    return x * 2;
}
PROBED int passer(int x) {
    guard held;
    CALLED(passer);
    int r = thrower(x) + 1;
    RETURNED(passer);
    return r;
}
PROBED int catcher(int x) {
    CALLED(catcher);
    int r;
    try { r = passer(x); }
    catch (const std::runtime_error &error) { r = error.what() == "odd " + std::to_string(x) ? -x : 0x7eadbeef; }
    RETURNED(catcher);
    return r;
}
static int next;
static void one_round(void) {
    int x = ++next, before = destroyed, r = catcher(x);
    check(r == ((x & 1) ? -x : x * 2 + 1), "wrong result of catcher");
    check(destroyed == before + 1, "a destructor did not run once");
}
static void setup(int, char **) { USE_TALLY(thrower); USE_TALLY(passer); USE_TALLY(catcher); }
}
