/* Looks back from wherever a signal comes, and throws: every caller has to be found, and what his registers held. */
#ifndef RANDOM_UNWINDING_H
#define RANDOM_UNWINDING_H
#include "protocol.h"
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>
#include <unwind.h>
struct machine;
void run(struct machine *, void (*)(void));
void f0(void);
extern char behind_functions[], run_called[];
struct bases { void *text, *data, *function; };
const void *_Unwind_Find_FDE(void *, struct bases *);
static _Thread_local jmp_buf caught;
static _Thread_local unsigned long tried;
TALLY(look_back); /* What returns knew where it was. */

static int is_random(unsigned long pc) { return pc >= (unsigned long)f0 && pc < (unsigned long)behind_functions; }
static void check_registers(struct _Unwind_Context *context) {
    static const unsigned long numbers[] = {3, 6, 12, 13, 14, 15};
    for (unsigned long i = 0; i < 6; i++)
        check(_Unwind_GetGR(context, (int)numbers[i]) == 0x1111 * (i + 1), "unwinding found another register");
}
static _Unwind_Reason_Code look(struct _Unwind_Context *context, void *seen) {
    unsigned long pc = _Unwind_GetIP(context), *functions = seen;
    if (is_random(pc)) functions[0]++;
    if (pc != (unsigned long)run_called) return _URC_NO_REASON;
    check_registers(context);
    functions[1]++;
    return _URC_NORMAL_STOP;
}
static void look_back(void *context) {
    struct bases bases;
    unsigned long seen[2] = {0, 0};
    unsigned long pc = (unsigned long)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    CALLED(look_back);
    if (!_Unwind_Find_FDE((void *)pc, &bases)) return;
    RETURNED(look_back);
    _Unwind_Backtrace(look, seen);
    if (seen[0] && !seen[1]) { say("BAD unwinding from f0%+ld\n", pc - (unsigned long)f0); _exit(1); }
    if (is_random(pc) && !seen[0]) { say("BAD nothing unwound from f0%+ld\n", pc - (unsigned long)f0); _exit(1); }
}
__attribute__((constructor)) static void count_looks(void) { USE_TALLY(look_back); }
#define AT_SIGNAL(context) look_back(context)

static _Unwind_Reason_Code stop(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
                                struct _Unwind_Exception *exception, struct _Unwind_Context *context, void *nothing) {
    (void)version; (void)class; (void)exception; (void)nothing;
    check(!(actions & _UA_END_OF_STACK), "nobody to catch what was thrown");
    if (_Unwind_GetIP(context) != (unsigned long)run_called) return _URC_NO_REASON;
    check_registers(context);
    longjmp(caught, 1);
}
/* Called by random functions, which do not align their stack. */
__attribute__((force_align_arg_pointer, noinline)) unsigned long try_it(unsigned char *memory);
unsigned long try_it(unsigned char *memory) {
    static _Thread_local struct _Unwind_Exception exception;
    memory[tried % 200] += 3;
    if (memory[tried % 100] % 4 == 3 || ++tried > 200) {
        _Unwind_ForcedUnwind(&exception, stop, 0);
        check(0, "nobody stopped unwinding");
    }
    return memory[7] * 3ul;
}
static void run_and_catch(struct machine *machine, void (*function)(void)) {
    tried = 0;
    if (!_setjmp(caught)) run(machine, function);
}
#define RUN run_and_catch
#endif
