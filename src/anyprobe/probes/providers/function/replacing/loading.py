"""Shared objects that are loaded into a program: by its own loader, in a thread of its own that is where it can.

``dlopen`` takes locks of the loader and of the allocator. A thread that was stopped anywhere might hold one of them and
would wait for itself. So only a thread serves whose whole stack is known and shows no function that takes them.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.binary.objects.elf import ET_DYN
from anyprobe.core.errors import StopTimeout, TargetError, UnsupportedTarget, UsageError
from anyprobe.core.printable import printable
from anyprobe.probes.providers.function.handlers.changing import errno_in
from anyprobe.probes.providers.function.replacing.quiet import Stacks
from anyprobe.target.process.process import Process

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.replacing.shared_object import SharedObject
    from anyprobe.target.remote.thread import Thread

_RTLD_NOW = 2
_TIMEOUT = 5.0
_ALLOCATORS = """
    malloc calloc realloc reallocarray free cfree memalign aligned_alloc posix_memalign valloc pvalloc malloc_trim
    malloc_info mallopt mallinfo mallinfo2 malloc_stats malloc_usable_size malloc_get_state malloc_set_state
    _Znwm _Znam _ZdlPv _ZdaPv _ZdlPvm _ZdaPvm _ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t _ZnwmSt11align_val_t
    _ZnamSt11align_val_t sdallocx mallocx rallocx xallocx dallocx
"""
_OTHERS = """
    dlopen dlmopen dlclose dlsym dlvsym dladdr dladdr1 dlinfo dlerror dl_iterate_phdr __tls_get_addr
    fork vfork _Fork __register_atfork pthread_atfork exit quick_exit _exit abort pthread_create pthread_exit
    __cxa_thread_atexit_impl __cxa_finalize setlocale newlocale posix_spawn posix_spawnp system popen
"""
_HOLDING = frozenset(f"{_ALLOCATORS} {_OTHERS}".split())
"""Functions below which a thread may hold a lock that the loader wants."""
_CALLS = frozenset({0, 3, 9, 10, 11, 12, 17, 28, 202, 257, 262})
"""What the loader and the allocator call: ``read``, ``close``, ``mmap``, ``mprotect``, ``munmap``, ``brk``,
``pread64``, ``madvise``, ``futex``, ``openat``, ``newfstatat``."""
_DT_FLAGS_1, _DF_1_PIE = 0x6FFFFFFB, 0x08000000


def load(host: "ProbeHost", wanted: "SharedObject") -> "LoadedObject":
    """Have a process load a shared object, unless it has it already; return it.

    Args:
        host: The session.
        wanted: The file, as it is found from here, and a function that it has.

    Raises:
        UsageError: It is no shared object for this machine, or does not have the function.
        UnsupportedTarget: The program cannot load it, and why.
        StopTimeout: There was no thread in which it can be loaded at present.

    """
    path, image = os.path.abspath(wanted.path), opened(wanted)
    host.objects.refresh()
    if (found := _find(host, path)) is not None:
        return found
    process, loader = host.process, _loader(host)
    if not isinstance(process, Process) or host.held:
        raise UnsupportedTarget(f"{printable(path)} cannot be loaded before the program has begun")
    if process.is_filtered(_CALLS):
        # a thread whose controller has died makes them with its filters in force
        raise UnsupportedTarget("the program filters its system calls (seccomp): no shared object is loaded into it")
    _check_seen(host, path)
    _check_needs(host, image)
    holding = _holding(host)
    stacks = Stacks(host)
    loaders = [each for each in host.objects.objects if host.objects.is_loader(each)]

    def fits(thread: "Thread") -> str:
        return _objection(host, stacks, thread, holding, loaders)

    errno_at = errno_in(host)
    try:
        with process.calling(_TIMEOUT, fits) as calls:
            calls.call(
                loader, os.fsencode(path), _RTLD_NOW, kept=[] if errno_at is None else [errno_at], timeout=_TIMEOUT
            )
    except StopTimeout as error:
        raise StopTimeout(f"{printable(path)} could not be loaded in {_TIMEOUT:g} s: {error}") from error
    host.objects.refresh()
    found = _find(host, path)
    if found is None:
        text = f"the program's loader does not load {printable(path)}: LD_DEBUG=all shows why when it is preloaded"
        raise UnsupportedTarget(text)
    return found


def opened(wanted: "SharedObject") -> "Image":
    """Return what the file of a shared object says; raise ``UsageError`` if it is none, or lacks the function."""
    from anyprobe.binary.images.image import Image

    path = os.path.abspath(wanted.path)
    try:
        image = Image.open(path)
    except TargetError as error:
        raise UsageError(str(error)) from error
    elf = image.elf
    if elf.elf_type != ET_DYN or not elf.dynamic or elf.dynamic.get(_DT_FLAGS_1, 0) & _DF_1_PIE:
        raise UsageError(f"{printable(path)} is no shared object: make it with cc -shared -fPIC")
    if len(image.functions.lookup(wanted.function)) != 1:
        raise UsageError(f"{printable(path)} has no function {printable(wanted.function)}")
    return image


def _find(host: "ProbeHost", path: str) -> "LoadedObject | None":
    """Return the object that was loaded from a path; raise if that is another file by now."""
    for loaded in host.objects.objects:
        if loaded.path.removesuffix(" (deleted)") != os.path.realpath(path):
            continue
        with suppress(OSError):
            if os.stat(path).st_ino == loaded.first.inode:
                return loaded
        raise UnsupportedTarget(f"an earlier {printable(path)} is loaded; give the new one another name")
    return None


def _loader(host: "ProbeHost") -> int:
    """Return where ``dlopen`` is; raise where the program cannot load anything."""
    objects = host.objects.objects
    if any(map(host.objects.is_musl, objects)):
        raise UnsupportedTarget("the program's C library is musl: it is not known where its threads can load anything")
    if not any(map(host.objects.is_loader, objects)):
        raise UnsupportedTarget("the program is statically linked: no shared object can be loaded into it")
    for name in ("dlopen", "__libc_dlopen_mode"):  # the second: glibc before 2.34 without libdl
        for each in objects:
            if each.is_executable:
                continue
            with suppress(TargetError):
                for function in each.image.functions.lookup(name):
                    return function.start + each.bias
    raise UnsupportedTarget("the program has no dlopen: no shared object can be loaded into it")


def _check_seen(host: "ProbeHost", path: str) -> None:
    """See that the program finds the same file by the path."""
    try:
        if os.path.samefile(path, host.process.root + path):
            return
    except OSError:
        pass
    raise UnsupportedTarget(f"the program does not see {printable(path)}: it has another root, or no permission")


def _check_needs(host: "ProbeHost", image: "Image") -> None:
    """See that what a shared object needs is there, as far as the program's objects tell: its loader says no more."""
    from anyprobe.binary.objects.imports import defined, undefined

    known = {soname for each in host.objects.objects for soname in _sonames(each)}
    if not known.issuperset(image.elf.needed):
        return  # what it brings along is not known here
    missing = undefined(image.dynamic_table)
    for each in host.objects.objects:
        if not missing:
            return
        with suppress(TargetError):
            missing -= defined(each.image.dynamic_table, missing)
    if missing:
        names = ", ".join(map(printable, sorted(missing)[:5]))
        text = f"{printable(image.name)} needs {names}, which neither the program nor its libraries export"
        raise UnsupportedTarget(text)


def _sonames(loaded: "LoadedObject") -> Iterable[str]:
    with suppress(TargetError):
        return loaded.file_name, loaded.image.elf.soname
    return (loaded.file_name,)


def _holding(host: "ProbeHost") -> dict[int, str]:
    """Return the functions that a thread must not be inside of, by run-time address."""
    found = {}
    for each in host.objects.objects:
        with suppress(TargetError):
            for name, starts in each.image.functions.starts_of(_HOLDING).items():
                found.update({start + each.bias: name for start in starts})
    return found


def _objection(
    host: "ProbeHost", stacks: Stacks, thread: "Thread", holding: dict[int, str], loaders: "list[LoadedObject]"
) -> str:
    """Return why a stopped thread is not where it can load something, or nothing."""
    registers = thread.registers
    walk = stacks.of(registers)
    if not walk.complete:
        return "its stack is not known"
    libc = host.objects.c_library()
    for number, frame in enumerate(walk.frames):
        loaded = host.objects.at(frame.at)
        if loaded is None or (number and frame.exact):
            return "in a signal handler"
        if loaded in loaders:
            return "in the loader"
        function = loaded.image.functions.containing(frame.at - loaded.bias)
        start = 0 if function is None else function.start + loaded.bias
        if start in holding:
            return f"in {holding[start]}"
        if number == 0 and loaded is libc and not thread.in_syscall:
            return "in the C library"
    return ""
