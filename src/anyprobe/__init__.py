"""Dynamic probes for live Linux x86-64 programs, at about a nanosecond per hit.

General layout: the names here are the daily ones. Heavy modules are imported when first used. Layers, each importing
only lower ones: ``cli``; ``kprobes``; ``probes``, ``reports``, ``usdt``; ``handlers``, ``splice``; ``binary``,
``target``, ``data``; ``isa``; ``core``.
"""

from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import (
    AnyprobeError,
    HandlerError,
    InternalError,
    KernelRefused,
    KprobeError,
    NoSuchProcess,
    PermissionDenied,
    RemoteCallFailed,
    SessionConflict,
    SiteRefused,
    SpecError,
    StopTimeout,
    TargetError,
    TargetExited,
    ThreadInside,
    UnsupportedTarget,
    UsageError,
)
from anyprobe.core.refusal import Reason, Refusal

if TYPE_CHECKING:
    from anyprobe.data.aggregates.aggregations import Avg, Count, Hist, LQuantize, Max, Min, Quantize, Stddev, Sum
    from anyprobe.data.readers.maps import Map
    from anyprobe.data.snapshots.profile import Profile
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.handlers.csource import CObject, CSource
    from anyprobe.handlers.intrinsics import buf, cstr, emit, printf
    from anyprobe.handlers.types.annotations import f32, f64, func, i8, i16, i32, i64, ptr, u8, u16, u32, u64
    from anyprobe.handlers.types.layouts import Array, Struct, Union
    from anyprobe.probes.api import AnySessionApi, SessionApi
    from anyprobe.probes.following.followed import Followed
    from anyprobe.probes.group import SessionGroup
    from anyprobe.probes.opening import attach, run
    from anyprobe.probes.options import SessionOptions
    from anyprobe.probes.profiling.profiler import profile
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.probes.providers.function.replacing.shared_object import SharedObject
    from anyprobe.probes.providers.kernel.session import KernelSession, kernel
    from anyprobe.probes.scripts.current import session
    from anyprobe.probes.selfattach.session import attach_self
    from anyprobe.probes.session import Session

__all__ = [
    "AnySessionApi",
    "AnyprobeError",
    "Array",
    "Avg",
    "CObject",
    "CSource",
    "Count",
    "Followed",
    "HandlerError",
    "Hist",
    "InternalError",
    "KernelRefused",
    "KernelSession",
    "KprobeError",
    "LQuantize",
    "Map",
    "Max",
    "Min",
    "NoSuchProcess",
    "PermissionDenied",
    "Probe",
    "Profile",
    "Quantize",
    "Reason",
    "Refusal",
    "RemoteCallFailed",
    "Session",
    "SessionApi",
    "SessionConflict",
    "SessionGroup",
    "SessionOptions",
    "SharedObject",
    "SiteRefused",
    "Snapshot",
    "SpecError",
    "Stddev",
    "StopTimeout",
    "Struct",
    "Sum",
    "TargetError",
    "TargetExited",
    "ThreadInside",
    "Union",
    "UnsupportedTarget",
    "UsageError",
    "attach",
    "attach_self",
    "buf",
    "cstr",
    "emit",
    "f32",
    "f64",
    "func",
    "i8",
    "i16",
    "i32",
    "i64",
    "kernel",
    "printf",
    "profile",
    "ptr",
    "run",
    "session",
    "stack",
    "u8",
    "u16",
    "u32",
    "u64",
]

_LAZY = {
    "Array": "anyprobe.handlers.types.layouts",
    "Avg": "anyprobe.data.aggregates.aggregations",
    "CObject": "anyprobe.handlers.csource",
    "CSource": "anyprobe.handlers.csource",
    "Count": "anyprobe.data.aggregates.aggregations",
    "Hist": "anyprobe.data.aggregates.aggregations",
    "KernelSession": "anyprobe.probes.providers.kernel.session",
    "LQuantize": "anyprobe.data.aggregates.aggregations",
    "Map": "anyprobe.data.readers.maps",
    "Max": "anyprobe.data.aggregates.aggregations",
    "Min": "anyprobe.data.aggregates.aggregations",
    "Probe": "anyprobe.probes.providers.function.probe",
    "Profile": "anyprobe.data.snapshots.profile",
    "Quantize": "anyprobe.data.aggregates.aggregations",
    "Session": "anyprobe.probes.session",
    "AnySessionApi": "anyprobe.probes.api",
    "SessionApi": "anyprobe.probes.api",
    "Followed": "anyprobe.probes.following.followed",
    "SessionGroup": "anyprobe.probes.group",
    "SharedObject": "anyprobe.probes.providers.function.replacing.shared_object",
    "SessionOptions": "anyprobe.probes.options",
    "Snapshot": "anyprobe.data.snapshots.snapshot",
    "Stddev": "anyprobe.data.aggregates.aggregations",
    "Struct": "anyprobe.handlers.types.layouts",
    "Sum": "anyprobe.data.aggregates.aggregations",
    "Union": "anyprobe.handlers.types.layouts",
    "attach": "anyprobe.probes.opening",
    "attach_self": "anyprobe.probes.selfattach.session",
    "buf": "anyprobe.handlers.intrinsics",
    "cstr": "anyprobe.handlers.intrinsics",
    "emit": "anyprobe.handlers.intrinsics",
    "f32": "anyprobe.handlers.types.annotations",
    "f64": "anyprobe.handlers.types.annotations",
    "func": "anyprobe.handlers.types.annotations",
    "i16": "anyprobe.handlers.types.annotations",
    "i32": "anyprobe.handlers.types.annotations",
    "i64": "anyprobe.handlers.types.annotations",
    "i8": "anyprobe.handlers.types.annotations",
    "kernel": "anyprobe.probes.providers.kernel.session",
    "printf": "anyprobe.handlers.intrinsics",
    "profile": "anyprobe.probes.profiling.profiler",
    "ptr": "anyprobe.handlers.types.annotations",
    "run": "anyprobe.probes.opening",
    "session": "anyprobe.probes.scripts.current",
    "stack": "anyprobe.handlers.types.annotations",
    "u16": "anyprobe.handlers.types.annotations",
    "u32": "anyprobe.handlers.types.annotations",
    "u64": "anyprobe.handlers.types.annotations",
    "u8": "anyprobe.handlers.types.annotations",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the module attribute protocol
    """Import what is heavy when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401 - IPython's
    """Make ``%%probe`` and ``%anyprobe`` known to IPython, as ``%load_ext anyprobe`` asks for."""
    from anyprobe import notebooks

    notebooks.load(shell)
