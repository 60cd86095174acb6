"""A call of one of the program's functions, in a thread that is stopped for it and could finish the call alone.

It is what a signal handler is to a thread: the function returns into the signal return code, with the frame of
``frame`` on the stack, which brings back every register, the extended state and the signal mask. All signals are
blocked meanwhile. What a function may do is for who asks for it: it may take locks, so the thread must hold none that
the function wants, and the other threads have to run.

Who calls waits until the thread is about to make the signal return, lets it do so, and gives it the registers that it
had, as after any injected call. If that takes too long, or the controller dies, the thread goes on by itself.
"""

import time
from collections.abc import Sequence

from anyprobe.core.errors import StopTimeout
from anyprobe.target.remote import frame
from anyprobe.target.remote.calls import RemoteCalls
from anyprobe.target.system import ptrace
from anyprobe.target.system.wait_status import Kind

ROOM = frame.ROOM + (128 << 10)
"""What has to be free on the thread's stack: the frame, the function's own frames, and a text for it."""
_RT_SIGRETURN = 15
_DIRECTION_FLAG = 0x400
_NEAR = 64


class FunctionCalls(RemoteCalls):
    """Calls functions in one stopped thread, for which ``ROOM`` was found to be spare."""

    def call(self, address: int, text: bytes, *arguments: int, kept: Sequence[int] = (), timeout: float) -> None:
        """Call a function with the address of a text and some numbers; what it returns is not known.

        Args:
            address: The function.
            text: What its first argument points to.
            arguments: The other ones.
            kept: Offsets from the thread pointer of words of four bytes that stay as they are (``errno``).
            timeout: Seconds for which is waited; ``StopTimeout`` then, and the thread finishes the call alone.

        """
        with self._process.translated("calling a function of"):
            self._call_function(address, text, arguments, kept, time.monotonic() + timeout)

    def _call_function(
        self, address: int, text: bytes, arguments: Sequence[int], kept: Sequence[int], deadline: float
    ) -> None:
        memory, thread = self._process.mem, self._thread
        registers = self._registers_at(address)
        registers.rdi = self._top - ROOM & -16  # what lies right below the frame is the function's
        memory.write(registers.rdi, text + b"\0")
        registers.rsi, registers.rdx = (*arguments, 0, 0)[:2]
        registers.rax = 0
        registers.eflags &= ~_DIRECTION_FLAG
        places = [thread.registers.fs_base + offset for offset in kept]
        before = [memory.read(place, 4) for place in places]
        self._start(registers)
        while not self._returns():
            thread.resume_with(ptrace.resume_to_syscall)
            if not thread.wait(deadline):
                self._leave_alone()
                raise StopTimeout(f"a call takes too long in thread {thread.tid}, which finishes it alone")
            if thread.ended:
                raise self._process.gone()
        for place, content in zip(places, before, strict=True):
            memory.write(place, content)
        self._run_to_syscall_stop()

    def _returns(self) -> bool:
        """Return whether the thread is about to make the signal return."""
        thread = self._thread
        if thread.kind is not Kind.SYSCALL or not ptrace.at_syscall_entry(thread.tid):
            return False
        registers = ptrace.Registers()
        ptrace.get_registers(thread.tid, registers)
        return registers.orig_rax == _RT_SIGRETURN and 0 <= registers.rsp - self._frame <= _NEAR

    def _leave_alone(self) -> None:
        """Have the thread come back by its frame, whose memory is not anyprobe's any more."""
        self._running, self._frame, self._top = False, 0, 0
        self._thread.abandon_registers()
