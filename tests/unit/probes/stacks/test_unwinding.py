"""Going up a stack in the controller, frame by frame, by rules of unwinding."""

from anyprobe.binary.unwind.rules import END, OF_RSP, OFFSET_SHIFT, SAVED_SHIFT
from anyprobe.core.memory import MemoryFault
from anyprobe.probes.stacks.unwinding import Code, Frame, walk

SP = 0x7000


class Known(Code):
    """Code at two addresses, with a rule for each."""

    def __init__(self, inner):
        self.rules = {0x100: inner, 0x200: END}

    def rule(self, at):
        return self.rules.get(at)

    def begins(self, pc):
        return False


def frames(inner, words):
    def word(address):
        if address < SP:
            raise MemoryFault(address, 8)
        return words[address]

    return walk(Known(inner), Frame(0x100, SP, 0x77, exact=True), word)


def test_a_register_that_has_been_taken_from_the_stack_again_is_not_read_there():
    found = frames(OF_RSP | 1 << OFFSET_SHIFT | 5 << SAVED_SHIFT, {SP: 0x201})
    assert found.complete
    assert found.frames[1] == Frame(0x201, SP + 8, 0x77)


def test_a_register_that_is_on_the_stack_is_read_there():
    found = frames(OF_RSP | 3 << OFFSET_SHIFT | 2 << SAVED_SHIFT, {SP + 16: 0x201, SP + 8: 0x55})
    assert found.complete
    assert found.frames[1] == Frame(0x201, SP + 24, 0x55)
