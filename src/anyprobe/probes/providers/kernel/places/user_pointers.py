"""Which parameters of the kernel's functions are addresses of programs, whatever a program has put there.

A program may pass the kernel's own addresses to a system call. What such a parameter leads to is read as the kernel
reads it: as the program's memory or not at all. Types tell where the kernel was built by clang (``type_tag("user")`` of
BTF); gcc, which distributions use, drops what the source declares. There all pointers of system calls are known,
and the parameters here, which are declared so in all kernels from 5.4 on that have the function.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from anyprobe.handlers.types.annotations import AnyType, PointerType

_CALLS: Final = re.compile(r"__(do|se|ia32)_(compat_)?sys_\w+")
"""Functions that implement system calls; ``__x64_sys_…`` is passed saved registers, which are the kernel's."""
_DECLARED: Final[dict[str, frozenset[str]]] = {
    name: frozenset(parameters.split())
    for name, parameters in {
        "vfs_read": "buf", "vfs_write": "buf", "ksys_read": "buf", "ksys_write": "buf", "ksys_pread64": "buf",
        "ksys_pwrite64": "buf", "do_sys_open": "filename", "do_sys_openat2": "filename", "getname": "filename",
        "getname_flags": "filename", "strncpy_from_user": "src", "strnlen_user": "str", "strndup_user": "s",
        "memdup_user": "src", "memdup_user_nul": "src", "vmemdup_user": "src", "_copy_from_user": "from",
        "_copy_to_user": "to", "clear_user": "to", "import_iovec": "uvec", "import_ubuf": "buf",
        "import_single_range": "buf", "vfs_readv": "vec", "vfs_writev": "vec", "do_readv": "vec", "do_writev": "vec",
        "do_preadv": "vec", "do_pwritev": "vec", "user_path_at": "name", "user_path_at_empty": "name",
        "user_path_create": "pathname", "do_faccessat": "filename", "vfs_fstatat": "filename",
        "vfs_statx": "filename", "do_statx": "filename buffer", "do_readlinkat": "pathname buf",
        "do_fchmodat": "filename", "do_fchownat": "filename", "do_utimes": "filename", "__sys_bind": "umyaddr",
        "__sys_connect": "uservaddr", "__sys_accept4": "upeer_sockaddr upeer_addrlen",
        "__sys_getsockname": "usockaddr usockaddr_len", "__sys_getpeername": "usockaddr usockaddr_len",
        "__sys_sendto": "buff addr", "__sys_recvfrom": "ubuf addr addr_len", "__sys_sendmsg": "msg",
        "__sys_recvmsg": "msg", "__sys_sendmmsg": "mmsg", "__sys_recvmmsg": "mmsg", "__sys_getsockopt": "optlen",
        "move_addr_to_kernel": "uaddr", "do_futex": "uaddr uaddr2", "do_mount": "dir_name",
        "core_sys_select": "inp outp exp", "do_sys_poll": "ufds", "copy_siginfo_to_user": "to",
        "do_epoll_wait": "events", "ksys_shmctl": "buf", "ksys_msgsnd": "msgp",
    }.items()
}  # fmt: skip


def declared(function: str, parameters: Sequence[tuple[str, AnyType]]) -> tuple[tuple[str, AnyType], ...]:
    """Return a function's parameters, with the pointers that are addresses of programs marked as such."""
    if _CALLS.fullmatch(function):
        return of_programs(parameters)
    named = _DECLARED.get(function.partition(".")[0], frozenset())
    return tuple((name, of_program(kind) if name in named else kind) for name, kind in parameters)


def of_programs(parameters: Sequence[tuple[str, AnyType]]) -> tuple[tuple[str, AnyType], ...]:
    """Return parameters of which all pointers are addresses of programs."""
    return tuple((name, of_program(kind)) for name, kind in parameters)


def of_program(kind: AnyType) -> AnyType:
    """Return a pointer as one to memory of a program, another type as it is."""
    return replace(kind, user=True) if isinstance(kind, PointerType) else kind
