"""What keeps a guest from being had, and how it ends."""

UNAVAILABLE = 125
"""The exit status where QEMU, a tool or the kernel's package cannot be had."""
TIMED_OUT = 124
DIED = 123
"""The exit status where the guest ended without its command's status: a panic, as a rule."""


class GuestUnavailable(Exception):  # noqa: N818 - the surroundings', not a mistake
    """Something that a guest is made of is missing; the text says what and how to get it."""
