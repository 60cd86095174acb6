"""Generated code that tells whether two stack pointers of a thread are on one stack."""

from anyprobe.data.layouts.layout import STACK_SHIFT


def same_stack(distance: str, base: str, free: str, elsewhere: str) -> str:
    """Return code that sets ZF if what is ``distance`` above the stack pointer ``base`` is on its stack.

    It is none where the end of a thread's stack, which the thread pointer is at, lies between: an alternate stack for
    signals may follow there. Then it goes to the label ``elsewhere``. ``distance`` and ``free`` are overwritten.
    """
    return f"""
        mov {free}, fs:[0x10]; sub {free}, {base}
        cmp {free}, {distance}; jbe {elsewhere}
        shr {distance}, {STACK_SHIFT}
    """
