// Functions whose names have everything in them that specs have signs for.
#include <compare>
#include <coroutine>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define KEPT __attribute__((noinline, noclone, used))
#define BODY asm volatile("")

struct Number {
    int v;
#define COMPARES(sign) KEPT bool operator sign(Number o) const { BODY; return v sign o.v; }
#define COMPUTES(sign) KEPT Number operator sign(int n) { BODY; return {v sign(n | 1)}; }
#define CHANGES(sign) KEPT Number &operator sign(int n) { BODY; v sign(n | 1); return *this; }
    COMPARES(<) COMPARES(>) COMPARES(<=) COMPARES(>=) COMPARES(==) COMPARES(!=) COMPARES(&&) COMPARES(||)
    COMPUTES(<<) COMPUTES(>>) COMPUTES(+) COMPUTES(-) COMPUTES(*) COMPUTES(/) COMPUTES(%) COMPUTES(&) COMPUTES(|) COMPUTES(^)
    CHANGES(<<=) CHANGES(>>=) CHANGES(+=) CHANGES(-=) CHANGES(*=) CHANGES(/=) CHANGES(%=)
    KEPT Number operator~() { BODY; return {~v}; }
    KEPT bool operator!() { BODY; return !v; }
    KEPT Number &operator++() { BODY; ++v; return *this; }
    KEPT Number operator++(int) { BODY; return {v++}; }
    KEPT Number operator-() { BODY; return {-v}; }
    KEPT int operator()(int a) { BODY; return v + a; }
    KEPT int operator[](int a) { BODY; return v + a; }
    KEPT Number *operator->() { BODY; return this; }
    KEPT Number *operator->*(int) { BODY; return this; }
    KEPT int &operator*() { BODY; return v; }
    KEPT Number operator,(Number o) { BODY; return o; }
    KEPT operator int() const { BODY; return v; }
    KEPT operator char *() { BODY; return nullptr; }
    template <class T> KEPT explicit operator T *() const { BODY; return 0; }
    KEPT static void *operator new(std::size_t n) { BODY; return malloc(n); }
    KEPT static void operator delete(void *p) { BODY; free(p); }
    KEPT static void *operator new[](std::size_t n) { BODY; return malloc(n); }
    KEPT static void operator delete[](void *p) { BODY; free(p); }
    template <class T> KEPT bool operator<(T *o) const { BODY; return !o; }
    template <class T> KEPT Number operator<<(T *o) const { BODY; return {!o}; }
    KEPT auto operator<=>(long o) const { BODY; return (long)v <=> o; }
};
KEPT long operator""_km(unsigned long long x) { BODY; return x; }

template <class R> struct Callee;
template <class R, class... A> struct Callee<R(A...)> {
    KEPT R call(A... a) { BODY; return R(sizeof...(a)); }
};
template <auto P> struct Constant { KEPT int f() { BODY; return 1; } };
template <char C> KEPT int character() { BODY; return C; }
KEPT int pointers(int (*f)(int), int (&r)[3], int Number::*m) { BODY; return f(r[0]) + (m != nullptr); }
KEPT std::string tagged(int x) { BODY; return std::string(x % 5, 'a'); }
namespace a::b::inline v1 { KEPT int deep(const char *const *p, int (*)[4], void (*)(...)) { BODY; return p != 0; } }

struct Task {
    struct promise_type {
        Task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() {}
    };
    std::coroutine_handle<promise_type> handle;
};
KEPT Task coroutine(int n) { for (int i = 0; i < n; i++) co_await std::suspend_always{}; }

namespace {
template <class T> KEPT int hidden(T x) { BODY; return (int)x; }
struct { KEPT int go(int x) { BODY; return x; } } nameless;
struct Base { int q; };
struct Derived : virtual Base {
    KEPT Derived() { BODY; q = 1; }
    KEPT virtual ~Derived() { BODY; }
    KEPT virtual int kind() { BODY; return q; }
};
struct Last : Derived {
    KEPT Last() { BODY; }
    KEPT ~Last() { BODY; }
    KEPT int kind() override { BODY; return 2; }
};
}
namespace one { static KEPT int twin(int x) { BODY; return x; } }
extern "C" { static KEPT int twin(int x) { BODY; return x + 1; } }

int main(int argc, char **argv) {
    long s = 0;
    Number a{argc}, b{2};
    int values[3] = {1, 2, 3};
    auto plain = [](int q) KEPT { BODY; return q; };
    auto generic = [&](auto q, char *) KEPT { BODY; return (int)q + argc; };
    for (int i = 0; i < 7; i++) {
        s += (a < b) + (a > b) + (a <= b) + (a >= b) + (a == b) + (a != b) + (a && b) + (a || b) + !a + (~a).v + (-a).v;
        s += (a << 1).v + (a >> 1).v + (a + 1).v + (a - 1).v + (a * 2).v + (a / 2).v + (a % 2).v + (a & 1).v + (a | 1).v + (a ^ 1).v;
        s += (a <<= 1).v + (a >>= 1).v + (a += 1).v + (a -= 1).v + (a *= 1).v + (a /= 1).v + (a %= 9).v + (++a).v + (a++).v;
        s += a(1) + a[1] + a->v + (a->*1)->v + *a + (a, b).v + a.operator int() + (a.operator char *() != 0);
        s += (static_cast<long *>(a) != 0) + (a < &s) + (a << &s).v + ((a <=> 3L) < 0) + 5_km;
        delete new Number{1};
        delete[] new Number[3];
        s += Callee<int(char, long)>().call('a', 2) + Constant<&one::twin>().f() + Constant<3>().f() + twin(i) + one::twin(i);
        s += character<':'>() + character<'>'>() + character<'('>() + pointers(twin, values, &Number::v) + tagged(i).size();
        s += plain(i) + generic(2.5, nullptr) + generic(1, nullptr) + hidden(1) + hidden('c') + nameless.go(3) + a::b::deep(argv, 0, 0);
        s += [](int z) KEPT { BODY; struct Inner { KEPT int k(int x) { BODY; return x; } }; return Inner().k(z); }(3);
        Task task = coroutine(2);
        while (!task.handle.done()) task.handle.resume();
        task.handle.destroy();
        Derived *derived = i & 1 ? new Last : new Derived;
        s += derived->kind();
        delete derived;
    }
    printf("%ld\n", s);
}
