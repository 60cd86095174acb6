/* Parameters and results of every kind, and structs that handlers follow by their members' names. */
#include "protocol.h"
#include <stdbool.h>
#include <stdlib.h>
typedef struct { int x; double y; } point;
typedef struct { float r, g, b; } colour;
typedef struct { double re, im; } pair;
typedef struct { char tag; short width; unsigned length : 12; int delta : 5; bool on : 1; long total; } header;
typedef struct { long a[5]; char name[8]; } large;
enum method { GET = 1, PUT = 7, LAST = -1 };
union value { long whole; double fraction; char bytes[8]; };
struct address { unsigned short port; const char *host; };
struct client { int fd; struct address address; struct address *peer; struct client *next; char label[12]; };
struct request {
    struct client *client;
    enum method method;
    unsigned kind : 3, flags : 9;
    int delta : 6;
    bool urgent;
    union value value;
    union { int anonymous; float fraction; };
    struct { int inner; const volatile short deep[3]; };
    struct client *clients[2];
    struct client embedded[2];
    double ratio;
    struct hidden *hidden;
};
TALLY(ten);
TALLY(twelve);
TALLY(structs);
TALLY(many);
TALLY(serve);
TALLY(make_point);
TALLY(make_pair);
TALLY(make_large);
TALLY(half);
TALLY(single);
TALLY(negative);
TALLY(truth);
TALLY(extended);
TALLY(find);
PROBED double ten(char a, double b, short c, float d, unsigned char e, long f, bool g, int h, unsigned i, long j) {
    CALLED(ten);
    RETURNED(ten);
    return a + b + c + d + e + f + g + h + i + j;
}
/* Ten floats, so that two are on the stack, and eight whole numbers around them. */
PROBED double twelve(double a, float b, double c, double d, double e, double f, double g, double h, float i, double j,
                     int k, short l) {
    CALLED(twelve);
    RETURNED(twelve);
    return a + b + c + d + e + f + g + h + i + j + k + l;
}
PROBED long structs(point p, colour c, header h, large l, pair z, signed char last) {
    CALLED(structs);
    RETURNED(structs);
    return p.x + (long)p.y + (long)c.b + h.total + l.a[4] + (long)z.im + last;
}
/* The fifth point has no integer register left, so it is on the stack; the number behind it has none either. */
PROBED long many(point a, point b, point c, long d, long e, header f, long g, point h) {
    CALLED(many);
    RETURNED(many);
    return a.x + b.x + c.x + d + e + f.total + g + h.x;
}
PROBED long serve(struct request *request, const char *name, long double exact, int n) {
    CALLED(serve);
    RETURNED(serve);
    return request && name ? n + (long)exact : -n;
}
PROBED point make_point(int x) { CALLED(make_point); RETURNED(make_point); return (point){x, x / 4.0}; }
PROBED pair make_pair(double x) { CALLED(make_pair); RETURNED(make_pair); return (pair){x, -x}; }
PROBED large make_large(long x) { CALLED(make_large); RETURNED(make_large); return (large){{x, 2 * x, 0, 0, -x}, "large"}; }
PROBED double half(double x) { CALLED(half); RETURNED(half); return x / 2; }
PROBED float single(float x) { CALLED(single); RETURNED(single); return x / 2; }
PROBED int negative(int x) { CALLED(negative); RETURNED(negative); return -x; }
PROBED bool truth(int x) { CALLED(truth); RETURNED(truth); return x > 2; }
PROBED long double extended(int x) { CALLED(extended); RETURNED(extended); return x; }
PROBED struct client *find(struct request *request) { CALLED(find); RETURNED(find); return request->client; }
static struct address near = {80, "near"}, far = {65535, "far away"};
static void one_round(void) {
    struct client second = {5, {8080, "second"}, &far, 0, "two"}, first = {-4, {443, "first"}, &near, &second, "one"};
    struct request request = {
        .client = &first, .method = PUT, .kind = 5, .flags = 300, .delta = -17, .urgent = true, .value.fraction = 2.5,
        .anonymous = -6, .inner = 9, .deep = {1, -2, 3}, .clients = {&second, &first}, .embedded = {second, first},
        .ratio = 0.75, .hidden = 0,
    };
    struct request lost = {.client = (struct client *)8, .method = LAST};
    colour c = {0.5f, 1.5f, 2.5f};
    header h = {'h', -300, 4000, -11, true, 1L << 40};
    large l = {{1, 2, 3, 4, -5}, "large"};
    check(ten(-1, 2.5, -300, 0.25f, 200, -5000000000, true, -7, 4000000000u, -9) == -1000000113.25, "ten");
    check(twelve(1, 2, 3, 4, 5, 6, 7, 8, 9.5f, 10.25, -11, -12) == 32.75, "twelve");
    check(structs((point){-3, 4.5}, c, h, l, (pair){6.5, -7.5}, -8) == (1L << 40) - 17, "structs");
    check(many((point){1, 1.5}, (point){2, 2.5}, (point){3, 3.5}, 4, 5, h, 7, (point){8, 8.5}) == (1L << 40) + 30, "many");
    check(serve(&request, "hello", 3.0L, 4) == 7 && serve(&lost, "lost", 1.0L, 2) == 3 && serve(0, 0, 0, 5) == -5, "serve");
    check(make_point(10).y == 2.5 && make_pair(1.5).im == -1.5 && make_large(3).a[4] == -3, "results");
    check(half(5) == 2.5 && single(5) == 2.5f && negative(7) == -7 && truth(3) && !truth(2) && extended(9) == 9, "numbers");
    check(find(&request) == &first, "find");
}
static void setup(int argc, char **argv) {
    (void)argc;
    (void)argv;
    USE_TALLY(ten); USE_TALLY(twelve); USE_TALLY(structs); USE_TALLY(many); USE_TALLY(serve); USE_TALLY(make_point);
    USE_TALLY(make_pair); USE_TALLY(make_large); USE_TALLY(half); USE_TALLY(single); USE_TALLY(negative);
    USE_TALLY(truth); USE_TALLY(extended); USE_TALLY(find);
}
