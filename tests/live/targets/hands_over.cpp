// Coroutines that hand over to one another by jumps: each sum awaits as many others as it is told to.
#include <coroutine>
#include <cstdio>
#include <cstdlib>

struct Task {
    struct promise_type;
    using Handle = std::coroutine_handle<promise_type>;
    struct Last {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(Handle own) noexcept;
        void await_resume() noexcept {}
    };
    struct promise_type {
        std::coroutine_handle<> waiting;
        int value = 0;
        Task get_return_object() { return {Handle::from_promise(*this)}; }
        std::suspend_always initial_suspend() { return {}; }
        Last final_suspend() noexcept { return {}; }
        void unhandled_exception() { abort(); }
        void return_value(int result) { value = result; }
    };
    Handle own;
    bool await_ready() { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiting) {
        own.promise().waiting = waiting;
        return own;
    }
    int await_resume() {
        int value = own.promise().value;
        own.destroy();
        return value;
    }
};

std::coroutine_handle<> Task::Last::await_suspend(Handle own) noexcept {
    auto waiting = own.promise().waiting;
    return waiting ? waiting : std::noop_coroutine();
}

static long leaves;
__attribute__((noipa)) int leaf(int n) {
    leaves++;
    return n + 1;
}
__attribute__((noinline)) Task inner(int n) { co_return leaf(n); }
__attribute__((noinline)) Task outer(int times) {
    int sum = 0;
    for (int i = 0; i < times; i++) sum += co_await inner(i) & 1;
    co_return sum;
}

int main(int, char **words) {
    Task all = outer(atoi(words[1]));
    all.own.resume();
    printf("%ld\n", leaves);
    all.own.destroy();
}
