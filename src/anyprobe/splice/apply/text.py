"""The only writer of a target's text, and why each of its writes is safe.

*What is text.* The program's own instructions, in private file mappings, whose bytes some thread may execute at any
time. Patches, springboard pages, counters and journals are memory that anyprobe has mapped itself: no instruction of
the program leads there before a write of this module makes one do so. No other module calls ``write_text``; a unit test
reads the sources for that.

*How bytes get there.* Text is mapped readable and executable. The kernel lets ``/proc/PID/mem`` write to it all the
same, into a private copy of the page, and the mapping never becomes writable: no thread meets a page that it cannot
execute, and programs that forbid themselves writable code (``MDWE``, SELinux) are served like others. Such a write is
atomic for one byte only, and copied page by page otherwise, so each write below says what makes more bytes appear at
once. The copy of the page is made before the write that counts (``make_private``), since it takes long.

*What is always true before a write*, for each caller:

- the journal lists the address, the old bytes and the new ones, and everything that the new bytes lead to works:
  patch, springboard, trap handler and its table. So after every prefix of the writes the program is correct, and a
  controller that dies leaves threads that run on, and a journal by which another one finds old or new bytes at each
  entry and restores the old ones, as often as it is interrupted in that;
- the bytes that are there were compared with what they should be, after the last moment at which anybody else could
  have changed them (in a stop), or as late as can be (without one); what differs is left alone and refused;
- no splice crosses the end of a page with bytes that must change together: of what is written page by page, each page
  by itself is correct.

*Why no thread executes half of a change.* There are four ways to write, by who stands still:

``write_at_rest``
    Everything that shares the address space is stopped: all threads, vfork children and their parents. Each pc was
    looked at, and saved pcs that a signal handler returns to, so no thread is at an address at which an instruction
    ends with the change; those that were are at their instruction's copy by now. Heads may be written in any order.
    Each core that executes the text later comes out of the kernel first, which serialises it.

``write_running``
    No thread stands still. Where the first byte alone changes, one store of one byte makes the change: a core fetches
    the old instruction or the new one. Otherwise the first byte becomes ``int3``. Then all cores are serialised by
    ``membarrier(PRIVATE_EXPEDITED_SYNC_CORE)``, for which the process has been registered: from here on no core has
    the old instruction in its pipeline, and who arrives is led into the patch by the signal handler. The bytes after
    the first can be reached by no thread now; they are written, the cores serialised again, and last comes the true
    first byte. A site displaces one instruction only, so no thread is inside. If the controller dies the ``int3``
    stays, and works; the journal's record of kind ``WINDOW`` lists it.

``write_around_breakpoint``
    The kernel, for a uprobe, or a debugger has written an ``int3`` over one byte of a splice. What is written is the
    program's own bytes on either side of it, those after it first: until then who continues after the breakpoint is
    lost anyway. The breakpoint's own byte is never written, since its owner may take it away at any moment.

``put_back``
    What undoes writes that failed in the middle, in the stop in which they were made or in one of its own, the last one
    first: every state in between is one that there was on the way.
"""

from collections.abc import Callable, Iterable, Sequence

from anyprobe.target.base import TextMemory

Write = tuple[int, bytes]


def make_private(memory: TextMemory, page: int, first: bytes) -> None:
    """Have the kernel copy a page before the stop in which it is changed, by writing the byte that it begins with."""
    memory.write_text(page, first)


def write_at_rest(memory: TextMemory, address: int, content: bytes) -> None:
    """Write bytes while everything that shares the address space is stopped, its pcs and saved pcs looked at."""
    memory.write_text(address, content)


def write_all_at_rest(memory: TextMemory, changes: Iterable[tuple[int, bytes, bytes]]) -> int:
    """Make changes, each an address with the bytes before and after, all or none; return how many were needed.

    Precondition: that of ``write_at_rest``.
    """
    begun: list[Write] = []
    try:
        for address, before, after in changes:
            if after != before:
                begun.append((address, before))
                memory.write_text(address, after)
    except BaseException:
        put_back(memory, begun)
        raise
    return len(begun)


def write_running(
    memory: TextMemory, steps: tuple[Sequence[Write], Sequence[Write], Sequence[Write]], serialise: Callable[[], None]
) -> None:
    """Write the three steps of a change that is made while the program runs, all cores serialised between them.

    Precondition, if the second step is not empty or any byte of the first is an ``int3``: the trap handler knows the
    sites, and the journal lists them. Steps of single bytes that need no ``int3`` come with a ``serialise`` that does
    nothing.
    """
    first, tails, last = steps
    _store(memory, first)
    serialise()
    _store(memory, tails)
    serialise()
    _store(memory, last)


def write_around_breakpoint(memory: TextMemory, address: int, now: bytes, content: bytes, at: int) -> None:
    """Turn the bytes ``now`` at an address into ``content``, but for the one at offset ``at``, a breakpoint's."""
    for start, end in ((at + 1, len(now)), (0, at)):
        if content[start:end] != now[start:end]:
            memory.write_text(address + start, content[start:end])


def put_back(memory: TextMemory, writes: Sequence[Write]) -> None:
    """Undo writes: ``writes`` has what is to be there, in the order in which something else was written."""
    for address, before in reversed(writes):
        memory.write_text(address, before)


def _store(memory: TextMemory, writes: Iterable[Write]) -> None:
    for address, content in writes:
        memory.write_text(address, content)
