"""Where versions of CPython keep threads, frames and code objects; of each the offsets in its headers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """The offsets of one version: of ``_PyRuntimeState``, ``PyThreadState``, ``_PyInterpreterFrame`` and others."""

    interpreters: int
    next_interpreter: int
    threads: int
    next_thread: int
    thread_id: int
    """``native_thread_id``: the id by which the thread knows itself."""
    current: int
    """``current_frame``; up to 3.12 ``cframe``, the interpreter's part on the C stack, which leads to the frame."""
    frame_of_part: int | None
    previous_part: int
    code: int
    previous: int
    owner: int
    """In 3.11 ``is_entry`` instead: whether C code has called the interpreter for this function."""
    tells_entry: bool
    first_line: int
    text: int
    """Where a string of ASCII letters has these."""
    wide_text: int
    name: int = 128
    """``co_qualname``."""
    file: int = 112


LAYOUTS = {
    (3, 11): Layout(
        interpreters=40, next_interpreter=0, threads=16, next_thread=8, thread_id=160,
        current=56, frame_of_part=8, previous_part=16,
        code=32, previous=48, owner=68, tells_entry=True, first_line=72, text=48, wide_text=72,
    ),
    (3, 12): Layout(
        interpreters=40, next_interpreter=0, threads=72, next_thread=8, thread_id=144,
        current=56, frame_of_part=0, previous_part=8,
        code=0, previous=8, owner=70, tells_entry=False, first_line=68, text=40, wide_text=56,
    ),
    (3, 13): Layout(
        interpreters=632, next_interpreter=7264, threads=7344, next_thread=8, thread_id=160,
        current=72, frame_of_part=None, previous_part=0,
        code=0, previous=8, owner=70, tells_entry=False, first_line=68, text=40, wide_text=56,
    ),
}  # fmt: skip
"""By major and minor version: patch releases keep them."""
