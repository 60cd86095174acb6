"""What KernInst's authors (OSDI 1999) would have audited, as far as programs ask the kernel for it.

Their list is Solaris's: creation and deletion of threads, lookups of path names, creation of vnodes, checks of
credentials, forks, core dumps, stream devices, opens, closes, changes of directory. The kernel makes vnodes, checks
credentials and dumps cores by itself; of these the calls that ask for it are here, with the kernel's answers.
Executed programs and connections, of which the list has "many more", are here, too.
"""

_LOOKUP = "dirfd=i32(arg0), path=cstr(arg1, 128)"
_PATH = "path=cstr(arg0, 128)"
_TWO = "path=cstr(arg0, 128), new_path=cstr(arg1, 128)"
_TWO_AT = "dirfd=i32(arg0), path=cstr(arg1, 128), new_dirfd=i32(arg2), new_path=cstr(arg3, 128)"
_PROGRAM = "path=cstr({0}, 96), " + ", ".join(f"argv=cstr(ptr[ptr]({{1}})[{at}], 32)" for at in range(4))
_ADDRESS = "fd=i32(arg0), address=buf(arg1, min(arg2, 112), 112)"
_IDS = "real=i32(arg0), effective=i32(arg1)"

RULES = [
    # threads and processes: made, and ended
    {"event": "clone", "call": "clone", "args": "flags=arg0"},
    {"event": "clone", "call": "clone3", "args": "flags=ptr[u64](arg0)[0]"},
    {"event": "clone", "call": "fork"},
    {"event": "clone", "call": "vfork"},
    {"event": "exit", "call": "exit", "args": "status=i32(arg0)", "entry": True},
    {"event": "exit", "call": "exit_group", "args": "status=i32(arg0)", "entry": True},
    {"event": "exec", "call": "execve", "args": _PROGRAM.format("arg0", "arg1"), "entry": True},
    {"event": "exec", "call": "execveat", "args": "dirfd=i32(arg0), " + _PROGRAM.format("arg1", "arg2"), "entry": True},
    # lookups of path names
    {"event": "lookup", "call": "stat", "args": _PATH},
    {"event": "lookup", "call": "lstat", "args": _PATH},
    {"event": "lookup", "call": "newfstatat", "args": _LOOKUP},
    {"event": "lookup", "call": "statx", "args": _LOOKUP},
    {"event": "lookup", "call": "access", "args": _PATH + ", mode=i32(arg1)"},
    {"event": "lookup", "call": "faccessat", "args": _LOOKUP + ", mode=i32(arg2)"},
    {"event": "lookup", "call": "faccessat2", "args": _LOOKUP + ", mode=i32(arg2)"},
    {"event": "lookup", "call": "readlink", "args": _PATH},
    {"event": "lookup", "call": "readlinkat", "args": _LOOKUP},
    # opens, closes, changes of directory
    {"event": "open", "call": "open", "args": _PATH + ", flags=i32(arg1), mode=u32(arg2)"},
    {"event": "open", "call": "creat", "args": _PATH + ", mode=u32(arg1)"},
    {"event": "open", "call": "openat", "args": _LOOKUP + ", flags=i32(arg2), mode=u32(arg3)"},
    {"event": "open", "call": "openat2", "args": _LOOKUP + ", flags=ptr[u64](arg2)[0], mode=ptr[u64](arg2)[1]"},
    {"event": "close", "call": "close", "args": "fd=i32(arg0)"},
    {"event": "chdir", "call": "chdir", "args": _PATH},
    {"event": "chdir", "call": "fchdir", "args": "fd=i32(arg0)"},
    {"event": "chdir", "call": "chroot", "args": _PATH},
    # what is made and removed: vnodes, there
    {"event": "make", "call": "mkdir", "args": _PATH + ", mode=u32(arg1)"},
    {"event": "make", "call": "mkdirat", "args": _LOOKUP + ", mode=u32(arg2)"},
    {"event": "make", "call": "mknod", "args": _PATH + ", mode=u32(arg1), dev=arg2"},
    {"event": "make", "call": "mknodat", "args": _LOOKUP + ", mode=u32(arg2), dev=arg3"},
    {"event": "make", "call": "link", "args": _TWO},
    {"event": "make", "call": "linkat", "args": _TWO_AT},
    {"event": "make", "call": "symlink", "args": _TWO},
    {"event": "make", "call": "symlinkat", "args": "path=cstr(arg0, 128), dirfd=i32(arg1), new_path=cstr(arg2, 128)"},
    {"event": "rename", "call": "rename", "args": _TWO},
    {"event": "rename", "call": "renameat", "args": _TWO_AT},
    {"event": "rename", "call": "renameat2", "args": _TWO_AT},
    {"event": "remove", "call": "unlink", "args": _PATH},
    {"event": "remove", "call": "unlinkat", "args": _LOOKUP + ", flags=i32(arg2)"},
    {"event": "remove", "call": "rmdir", "args": _PATH},
    # credentials: changed, and used for what needs them
    {"event": "credentials", "call": "setuid", "args": "id=i32(arg0)"},
    {"event": "credentials", "call": "setgid", "args": "id=i32(arg0)"},
    {"event": "credentials", "call": "setreuid", "args": _IDS},
    {"event": "credentials", "call": "setregid", "args": _IDS},
    {"event": "credentials", "call": "setresuid", "args": _IDS + ", saved=i32(arg2)"},
    {"event": "credentials", "call": "setresgid", "args": _IDS + ", saved=i32(arg2)"},
    {"event": "credentials", "call": "setfsuid", "args": "id=i32(arg0)"},
    {"event": "credentials", "call": "setfsgid", "args": "id=i32(arg0)"},
    {"event": "credentials", "call": "setgroups", "args": "number=i32(arg0)"},
    {"event": "credentials", "call": "capset"},
    {"event": "owner", "call": "chmod", "args": _PATH + ", mode=u32(arg1)"},
    {"event": "owner", "call": "fchmod", "args": "fd=i32(arg0), mode=u32(arg1)"},
    {"event": "owner", "call": "fchmodat", "args": _LOOKUP + ", mode=u32(arg2)"},
    {"event": "owner", "call": "chown", "args": _PATH + ", user=i32(arg1), group=i32(arg2)"},
    {"event": "owner", "call": "fchown", "args": "fd=i32(arg0), user=i32(arg1), group=i32(arg2)"},
    {"event": "owner", "call": "lchown", "args": _PATH + ", user=i32(arg1), group=i32(arg2)"},
    {"event": "owner", "call": "fchownat", "args": _LOOKUP + ", user=i32(arg2), group=i32(arg3)"},
    {"event": "privilege", "call": "mount", "args": "path=cstr(arg0, 128), new_path=cstr(arg1, 128)"},
    {"event": "privilege", "call": "umount2", "args": _PATH},
    {"event": "privilege", "call": "setns", "args": "fd=i32(arg0), kind=i32(arg1)"},
    {"event": "privilege", "call": "unshare", "args": "flags=arg0"},
    {"event": "privilege", "call": "ptrace", "args": "request=arg0, pid=i32(arg1)"},
    {"event": "privilege", "call": "finit_module", "args": "fd=i32(arg0)"},
    # connections
    {"event": "connect", "call": "connect", "args": _ADDRESS},
    {"event": "bind", "call": "bind", "args": _ADDRESS},
    {"event": "listen", "call": "listen", "args": "fd=i32(arg0)"},
    {"event": "accept", "call": "accept", "args": "fd=i32(arg0)"},
    {"event": "accept", "call": "accept4", "args": "fd=i32(arg0)"},
    # signals, which end processes and dump cores
    {"event": "signal", "call": "kill", "args": "pid=i32(arg0), signal=i32(arg1)"},
    {"event": "signal", "call": "tgkill", "args": "pid=i32(arg0), tid=i32(arg1), signal=i32(arg2)"},
]
