"""Typed reasons why something cannot be done at an address. Verdicts are refusals, never booleans."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a site or a strategy is refused; the value is what the JSON and ``explain`` show."""

    NOT_A_BOUNDARY = "not-an-instruction-boundary"
    UNDECODABLE = "undecodable"
    NOT_CODE = "not-code"
    NO_DISPLACED_FORM = "no-displaced-form"
    TOO_SHORT = "too-short"
    JUMP_TARGET_IN_JTPR = "jump-target-in-jtpr"
    CONTROL_FLOW_UNKNOWN = "control-flow-unknown"
    PAGE_BOUNDARY = "page-boundary"
    BORROWED_BYTES = "borrowed-bytes"
    OVERLAP = "overlaps-another-splice"
    NOT_A_BRANCH = "not-a-direct-branch"
    PUN_OUT_OF_REACH = "pun-target-not-mappable"
    NO_ROOM_NEARBY = "no-room-nearby"
    ENTRY_IS_LOOP_HEAD = "entry-is-loop-head"
    RETURN_POINT_JOINED = "return-point-joined"
    LONE_RET = "lone-ret"
    NO_EXIT = "no-exit"
    PART_OF_FUNCTION = "part-of-a-function"
    SPLIT_STACK = "split-stack"
    EXIT_REFUSED = "exit-refused"
    RETURN_ADDRESS = "return-address-must-stay"
    RSEQ = "restartable-sequence"
    CANCELLATION_RANGE = "syscall-cancellation-range"
    SIGNAL_RETURN = "signal-return-trampoline"
    VSYSCALL = "vsyscall"
    SHARED_TEXT = "shared-text"
    TEXT_RELOCATION = "text-relocation"
    WRITABLE_TEXT = "writable-text"
    FILELESS_TEXT = "file-less-text"
    FOREIGN_BYTES = "memory-differs-from-file"
    GONE = "gone"
    GO_TIMING = "go-timing"
    NO_THREAD_SLOT = "no-thread-slot"
    NO_INVARIANT_TSC = "tsc-not-invariant"
    TSC_FORBIDDEN = "tsc-forbidden"
    TSC_UNKNOWN = "tsc-unknown"
    OWN_CLOCK = "own-clock"
    NO_CPU_CLOCK = "no-cpu-clock"
    NO_STACK = "no-stack-allowed"
    ALTERNATE_STACK = "alternate-stack"
    THREAD_IN_SYSCALL = "thread-in-syscall"
    SIGNAL_CONTEXT_IN_JTPR = "signal-context-in-jtpr"
    TRAP_UNSAFE = "trap-unsafe"
    MAY_FAULT = "may-fault"
    STRATEGY_NOT_ASKED = "strategy-not-asked-for"
    NEEDS_STOP = "needs-a-stop"
    STATIC_KEY = "static-key"
    ALTERNATIVE = "replaced-code"
    STATIC_CALL = "static-call"
    FTRACE_SITE = "ftrace-site"
    KPROBE = "kprobe-there"
    BUG = "bug-or-warning"
    TASK_INSIDE = "task-inside"
    LANDING_PAD = "landing-pad"
    KPROBE_BLACKLIST = "kprobe-blacklisted"
    NO_INSTRUMENTATION = "not-to-be-instrumented"
    NOT_TRACEABLE = "not-traceable"
    KERNEL_REFUSES = "kernel-refuses"
    IFUNC_UNRESOLVED = "ifunc-unresolved"
    SEMAPHORE = "semaphore-not-writable"
    BESIDE_HOT_CODE = "beside-hot-code"
    LEFT_OUT = "left-out"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason, the address it concerns and a sentence for the user."""

    reason: Reason
    address: int
    detail: str

    def __str__(self) -> str:
        """Return the refusal as one line."""
        return f"{self.address:#x}: {self.reason.value}: {self.detail}"
