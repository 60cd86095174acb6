"""The situations that break other tools, one small program each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.driver import build


@dataclass(frozen=True)
class Situation:
    """A program, the functions of it that are probed and how many rounds make a test."""

    name: str
    source: str
    functions: tuple[str, ...]
    rounds: int = 200
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    compiler: str | None = None
    refusable: Mapping[str, str] = field(default_factory=dict)
    """Functions that may be refused, and for which reason alone."""
    forks: bool = False
    """Whether fork children call the functions, too: their calls are counted but not timed."""

    @property
    def slotless(self) -> bool:
        """Whether the program has no thread slots for us: another libc, or threads made by ``clone`` itself."""
        return self.compiler is not None or self.source == "raw_clones.c"

    def build(self) -> Path:
        """Return the compiled program."""
        return build(self.source, *self.options, compiler=self.compiler)


SITUATIONS = (
    Situation("exception", "exceptions.cpp", ("thrower", "passer", "catcher")),
    Situation("longjmp", "longjmps.c", ("leaper", "middle"), 3000),
    Situation("recursion-200-deep", "recursion.c", ("descend",)),
    Situation(
        "tail-call",
        "tails.c",
        ("tail_long", "tail_short", "tail_indirect", "second", "jne_short", "jne_long", "thunk"),
        3000,
    ),
    Situation(
        "indirect-jump-either-way",
        "undecided.c",
        ("by_register", "by_table", "by_red_zone", "by_part", "to_entry", "second"),
        3000,
    ),
    Situation(
        "short-exits",
        "short_exits.c",
        ("from_above_and_far", "only_far", "two_blocks", "behind_call", "called"),
        3000,
    ),
    Situation(
        "tiny-function",
        "tiny.c",
        ("three", "three_packed", "four", "four_packed", "two", "last_packed", "lone_ret", "lone_ret_packed"),
        3000,
        refusable={"lone_ret": "lone-ret", "lone_ret_packed": "lone-ret"},
    ),
    Situation("loop-into-entry", "loops.c", ("to_first", "to_first_far", "to_second", "to_third", "scan", "gcd"), 3000),
    Situation(
        "thread-parked-inside",
        "parked.c",
        ("spin_inside", "sleep_inside"),
        refusable={"sleep_inside": "thread-in-syscall"},
    ),
    Situation(
        "handler-parked-inside", "parked_in_handler.c", ("faulting",), refusable={"faulting": "signal-context-in-jtpr"}
    ),
    Situation("backtrace", "backtraces.c", ("outer", "inner"), options=("-funwind-tables", "-rdynamic")),
    Situation("all-signals-blocked", "all_blocked.c", ("quietly",)),
    Situation("own-sigtrap-handler", "own_sigtrap.c", ("trapping",), 2000),
    Situation("timer-signals", "timer_signals.c", ("ticked", "from_handler", "both_sides"), 40),
    Situation("fork", "forks.c", ("forked",), 50, forks=True),
    Situation("spawn", "spawns.c", ("spawned",), 3),
    Situation("asleep-in-system-calls", "blocked_calls.c", ("waited",), 2),
    Situation("io-uring-worker", "io_uring_worker.c", ("uring_work",)),
    Situation(
        "machine-state",
        "machine_state.c",
        ("red_zone", "red_zone_entry", "flags_jcc", "flags_adc", "x87", "x87_stack", "avx", "avx512"),
        3000,
    ),
    Situation("tiles", "tiles.c", ("multiplied", "beside"), 3000),
    Situation("threads-sharing-a-thread-pointer", "raw_clones.c", ("cloned",), 20),
    Situation("processes-sharing-memory", "raw_clones.c", ("cloned",), 20, arguments=("processes",)),
    Situation(
        "coroutines",
        "coroutines.c",
        ("generator", "yielding", "on_stack", "beside_stack"),
        100,
        refusable={"beside_stack": "alternate-stack"},
    ),
    Situation("thread-churn", "thread_churn.c", ("churned",), 100),
    Situation("two-hundred-threads", "thread_churn.c", ("churned",), 20, arguments=("200",)),
    Situation("non-pie", "static_program.c", ("plain", "through_pointer"), 2000, options=("-no-pie",)),
    Situation("static", "static_program.c", ("plain", "through_pointer"), 2000, options=("-static",)),
    Situation("static-pie", "static_program.c", ("plain", "through_pointer"), 2000, options=("-static-pie",)),
    Situation("endbr64", "static_program.c", ("plain", "through_pointer"), 2000, options=("-fcf-protection=full",)),
    Situation("frame-pointers", "static_program.c", ("plain", "through_pointer"), 2000, options=("-O0",)),
    Situation("musl", "static_program.c", ("plain", "through_pointer"), 2000, compiler="musl-gcc"),
    Situation(
        "musl-static", "static_program.c", ("plain", "through_pointer"), 2000, options=("-static",), compiler="musl-gcc"
    ),
)

REGISTERS = Situation(
    "registers",
    "registers.c",
    (
        *("nop_five", "nop_two", "three_bytes", "prologue", "red_reader", "red_writer", "carry_user", "flag_reader"),
        *(
            "branch_on_flags",
            "rip_relative",
            "x87_exchange",
            "sse_add",
            "backward_loop",
            "loop_to_start",
            "call_inside",
        ),
        *("rcx_branch", "string_store", "locked", "tail_jump", "stays_or_leaves", "avx_add", "avx512_masked"),
        *("lea_leaf", "two_written", "all_but_rax_written", "one_written", "written_on_one_way", "carry_kept"),
        *("undefined_flags", "zero_scanned", "direction_user", "callee_reads", "pointed_callee_reads"),
        *("jump_to_reader", "jump_through_pointer", "jump_on_carry"),
    ),
    300,
)
"""Every function of it compares the whole state of the processor after a probed and an unprobed run."""
