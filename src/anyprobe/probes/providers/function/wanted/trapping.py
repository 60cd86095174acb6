"""What a demand for traps cannot have, and what is said to whoever makes it."""

import re

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.objects import ObjectTable
from anyprobe.probes.providers.function.resolve import ResolvedSite

WARNING = (
    "strategy trap: a trap that a thread meets with SIGTRAP blocked kills the program. The C library blocks all signals"
    " inside pthread_create and posix_spawn, and programs may do so anywhere; --strategy auto has no such danger"
)

_SPAWN = """
    __spawni_child __spawni __spawnix execve execveat fexecve execvpe execvp execv __execvpex __execvpe_common.isra.0
    maybe_script_execute sigaction __sigaction __libc_sigaction sigprocmask __sigprocmask pthread_sigmask
    __pthread_sigmask sigismember sigfillset sigemptyset setpgid __setpgid setsid __setsid seteuid setegid
    sched_setscheduler __sched_setscheduler sched_setparam __sched_setparam getrlimit getrlimit64 __getrlimit open
    open64 __open __open64 __open_nocancel __open64_nocancel close __close __close_nocancel close_range closefrom
    __closefrom_fallback dup __dup dup2 __dup2 dup3 __dup3 fcntl fcntl64 __fcntl __fcntl64 __fcntl64_nocancel
    __fcntl64_nocancel_adjusted ioctl __ioctl chdir __chdir fchdir __fchdir tcsetpgrp _exit _Exit __errno_location
    __libc_enable_asynccancel __libc_disable_asynccancel getenv
"""
_THREADS = """
    clone __clone clone3 __clone3 __clone_internal __clone_internal_fallback start_thread start start_c __ctype_init
    __sigsetjmp _setjmp setjmp madvise __madvise __nptl_free_tcb __nptl_free_stacks __nptl_deallocate_stack
    __nptl_stack_list_add __nptl_stack_list_del __libc_thread_freeres __lll_lock_wait_private __lll_lock_wake_private
    __pthread_exit pthread_exit __unmapself __tl_lock __tl_unlock __wait __wake __block_all_sigs __block_app_sigs
    __restore_sigs vfork __vfork _Fork __libc_fork fork abort raise
    __pthread_kill_internal __pthread_kill_implementation __pthread_setxid __nptl_setxid __nptl_setxid_sighandler
    sighandler_setxid do_setxid __synccall
"""
_MASKS = """
    pthread_create __pthread_create __pthread_create_2_1 __pthread_create_2_0 posix_spawn timer_sigev_thread
    notify_func_wrapper getcontext __getcontext setcontext __setcontext swapcontext __swapcontext
"""
"""What blocks signals itself, between its entry and its returns."""
_BLOCKED, _BLOCKING = frozenset((_SPAWN + _THREADS).split()), frozenset(_MASKS.split())
_BLOCKED_STRINGS = re.compile(r"_*(memcpy|mempcpy|memmove|memset|strchrnul|strlen|strnlen|strchr|strncmp)(_\w+)?")
"""String functions, each in many forms: the search for a program along PATH uses them in the child of posix_spawn."""


def trap_refusal(objects: ObjectTable, site: ResolvedSite) -> Refusal | None:
    """Return why a site in the C library must not trap, by the names of its function."""
    libc = objects.libc()
    static = libc is None and site.object.is_executable and len(objects.objects) == 1
    if site.object is not libc and not static and not site.object.name.startswith(("ld-musl", "libc.", "libpthread.")):
        return None
    for name in site.function.names:
        if name in _BLOCKED or _BLOCKED_STRINGS.fullmatch(name):
            detail = f"the C library calls {name} with all signals blocked, where a trap kills"
            return Refusal(Reason.TRAP_UNSAFE, site.address, detail)
        if name in _BLOCKING and site.kind not in ("entry", "return"):
            detail = f"{name} blocks all signals, where a trap kills"
            return Refusal(Reason.TRAP_UNSAFE, site.address, detail)
    return None
