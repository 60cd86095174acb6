"""What is known of the memory of a process, so that handlers read some of it without asking the kernel."""

from typing import TYPE_CHECKING

from iced_x86 import Code, Decoder, OpKind, Register

from anyprobe.core.errors import SpecError
from anyprobe.core.memory import MemoryFault
from anyprobe.probes.specs.spec import parsed
from anyprobe.splice.codegen.handlers.memory_routines import ReadingFacts

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost

_FUNCTION_BYTES = 512
_MAIN_STACK_BYTES = 8 << 20
"""What lies so far below the end of the main stack is the stack: the kernel places nothing else there."""


def reading_facts(session: "ProbeHost") -> ReadingFacts:
    """Return what the routines that read memory rely on."""
    inside = session.process.inner_pid()
    return ReadingFacts(pid=inside, stack_block=_stack_block(session) or 0, main_stack=_main_stack(session))


def _main_stack(session: "ProbeHost") -> range:
    end = next((each.end for each in session.process.mappings() if each.path == "[stack]"), 0)
    if not end:
        return range(0)
    limit = session.process.stack_limit()
    return range(end - min(limit, _MAIN_STACK_BYTES), end)


def _stack_block(session: "ProbeHost") -> int | None:
    for spec in parsed(("libc:pthread_getattr_np", "a.out:pthread_getattr_np")):
        try:
            sites, _ = session.resolve(spec)
            for site in sites:
                code = site.object.image.text().memory.read(site.function.start, _FUNCTION_BYTES)
                if (found := stack_block_offset(code)) is not None:
                    return found
        except (SpecError, MemoryFault):
            continue
    return None


def stack_block_offset(code: bytes) -> int | None:
    """Return where a thread's control block says what its stack is, by the code of ``pthread_getattr_np``.

    It reads the lowest address, tests it (the main thread has none), and reads the size from the next word.
    """
    candidate, base = 0, Register.NONE
    tested = False
    for insn in Decoder(64, code):
        loads = insn.code == Code.MOV_R64_RM64 and insn.op1_kind == OpKind.MEMORY and insn.memory_displacement > 0x100
        if loads and tested and insn.memory_base == base and insn.memory_displacement == candidate + 8:
            return candidate
        if loads:
            candidate, base, tested = insn.memory_displacement, insn.memory_base, False
            loaded = insn.op0_register
        elif insn.code == Code.TEST_RM64_R64 and candidate and insn.op0_register == insn.op1_register == loaded:
            tested = True
    return None
