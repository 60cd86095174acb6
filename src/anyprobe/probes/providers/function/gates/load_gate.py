"""Where a program loads libraries it waits a moment, until the probes in them are in place.

glibc's and musl's loaders call ``_dl_debug_state``, for debuggers, when a library has been mapped: before its
constructors run, and glibc's before it is relocated, which is when IFUNC resolvers run (musl knows none). No thread
waits if the controller is gone: the kernel lets it go on then. If the controller does not come, the thread waits for
``PATIENCE``, and no other after it until the controller is awake again.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.code import NativeCode
from anyprobe.core.refusal import Refusal
from anyprobe.core.wording import times
from anyprobe.isa.leaf import leaf
from anyprobe.probes.providers.function.handlers.callbacks import Callbacks, Hit, Wait
from anyprobe.probes.providers.function.load_order import loader_list
from anyprobe.splice.codegen.handlers.rendezvous import CALLS, Room

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.gates.choice_gate import ChoiceGate
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.splice.userspace.signal_view import Place

UNSEEN = "what runs there before is not counted"
PATIENCE = 5.0
"""Seconds that a thread waits at most for one change."""
NOTIFIER = "_dl_debug_state"
"""What loaders call for debuggers; exported, so that stripped loaders have it, too."""
PLACES = 64
"""How many threads of a program and of its children may wait at once."""
_R_STATE = 24
"""Where ``struct r_debug`` says whether the list of libraries is being changed; 0: it is whole."""


class LoadGate:
    """The gate of one session."""

    def __init__(self, session: "ProbeHost", look: Callable[[Hit], object]) -> None:
        """Nothing is placed yet.

        ``look`` places probes in what has been loaded, in the thread that serves the gate; it may let the thread go
        that waits, which else goes when ``look`` returns.
        """
        self._session, self._look = session, look
        self._callbacks = Callbacks(session, room=Room(PLACES, taken=True, gives_up=True))
        self._choices: ChoiceGate | None = None
        self._lost = 0
        self.is_placed = False
        """Whether threads wait."""
        self._refusal = ""
        """Why threads do not wait, until that was told."""

    def place(self, objects: "ObjectTable", function_at: "Callable[[int], Place | Refusal]") -> None:
        """Have threads wait that load libraries, if they can be made to; ``late_looks`` says so if they cannot."""
        self._refusal = self._placed(objects, function_at)
        self.is_placed = not self._refusal

    def late_looks(self, gone: "Collection[str]", *, others: bool) -> list[str]:
        """Return in words, once, that threads do not wait, if probes are wanted in what may be loaded now.

        ``gone``: libraries that were unloaded and may come again; ``others``: probes are wanted in others, too.
        """
        what = "libraries that come later" if others else ", ".join(sorted(gone))
        if not self._refusal or not what:
            return []
        why, self._refusal = self._refusal, ""
        if others:
            return [f"{what} are looked for five times a second, since {why}: {UNSEEN}"]
        return [f"{what}: unloaded, and looked for five times a second from here on, since {why}: {UNSEEN}"]

    def may_have_missed(self) -> bool:
        """Return whether libraries may have come and gone since this was asked, without a thread that waited."""
        before, self._lost = self._lost, sum(self._callbacks.lost().values())
        return not self.is_placed or self._lost != before

    def _placed(self, objects: "ObjectTable", function_at: "Callable[[int], Place | Refusal]") -> str:
        loader = objects.loader()
        debug = loader_list(objects.objects, self._session.process.mem)
        if loader is None or not (debug or objects.is_musl(loader)):
            return "it has no dynamic loader"
        notifier = next(
            (function_at(each.start + loader.bias) for each in loader.image.functions.lookup(NOTIFIER)), None
        )
        if notifier is None:
            return f"{loader.name} has no {NOTIFIER}"
        if isinstance(notifier, Refusal):
            return str(notifier)
        if self._session.process.is_filtered(CALLS):
            return "it filters its system calls"
        whole = None if objects.is_musl(loader) else is_whole(debug)  # musl's tells only of lists that are
        (refusal,) = self._callbacks.place_inside([Wait(notifier, whole)], self._serve, timeout=PATIENCE)
        if refusal is None:
            get_ready()
        return "" if refusal is None else str(refusal)

    def watch_choices(
        self, resolvers: Sequence[int], function_at: "Callable[[int], Place | Refusal]",
        chosen: "Callable[[int, Hit], object]",
    ) -> None:  # fmt: skip
        """Have threads wait, too, where functions (IFUNC) have chosen others; ``chosen``: see ``ChoiceGate``."""
        from anyprobe.probes.providers.function.gates.choice_gate import ChoiceGate

        if self.is_placed:
            self._choices = self._choices or ChoiceGate(self._session, self._callbacks, chosen)
            self._choices.place(resolvers, function_at)

    def choices_end(self, resolver: int) -> None:
        """Have no thread wait any more where one function has chosen another."""
        if self._choices is not None:
            self._choices.end(resolver)

    def _serve(self, hit: Hit) -> None:
        if not self._callbacks.ending:
            self._look(hit)

    def __contains__(self, address: int) -> bool:
        """Return whether threads sleep at an address of the program's memory."""
        return address in self._callbacks

    def missed(self) -> list[str]:
        """Return in words how often libraries were loaded, or unloaded, without the program waiting to the end."""
        lost = Counter(self._callbacks.lost())
        late = lost["callback timeout"] + lost["callback failed"]
        said = []
        if late:
            said.append(f"libraries were loaded or unloaded {times(late)} and probes not in place in time: {UNSEEN}")
        if lost["no callback"]:
            said.append(f"libraries were loaded or unloaded {times(lost['no callback'])} without waiting: {UNSEEN}")
        return said

    def end(self) -> None:
        """Let all threads go; none waits from here on. The caller does not hold the session's lock."""
        self._callbacks.release()


def get_ready() -> None:
    """Import what places probes, which is not done before it is needed: a thread would wait for it."""
    from anyprobe.binary.flow import flow_graph, jump_tables  # noqa: F401 - as said
    from anyprobe.binary.liveness import entry  # noqa: F401 - as said
    from anyprobe.splice.plan import planner  # noqa: F401 - as said


def is_whole(debug: int) -> NativeCode:
    """Return the condition: the loader's list is whole.

    Loaders call the notifier before they change the list, too, and then nothing has been mapped yet.
    """
    listing = f"""
        mov rax, {debug + _R_STATE:#x}; mov ecx, [rax]
        xor eax, eax; test ecx, ecx; jnz short changing
        inc eax
    changing:
        ret
    """
    return leaf(listing, clobbers="rax rcx flags")
