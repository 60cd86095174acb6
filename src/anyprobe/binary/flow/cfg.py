"""Control flow of a module: what may be entered where, and how much of that is certain.

Nothing is analysed before it is asked for, and nothing twice. Addresses are link-time addresses of the module.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from threading import RLock

from anyprobe.binary.analysis.layout import Layout
from anyprobe.binary.analysis.manager import Analyses
from anyprobe.binary.analysis.views import ModuleView
from anyprobe.binary.decoding.kept_lines import KeptLines
from anyprobe.binary.flow.entry_points import EntryPoints
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.refusal import Reason, Refusal

__all__ = ["CodeMap", "FunctionCode"]


class CodeMap:
    """All functions of one module, analysed on demand.

    ``parts`` maps the start of a part (``name.cold``) to the start of the function that it belongs to, where symbols
    say so; what they do not say is inferred from who jumps where. Sessions in several threads may share one: what is
    found out about the whole module is found by one of them, while the others that want it wait.
    """

    __slots__ = (
        "_finding", "_functions", "_unproven_starts", "analyses", "entries", "kept_lines", "layout", "named_parts",
        "text",
    )  # fmt: skip

    def __init__(self, text: ModuleText, parts: Mapping[int, int] | None = None) -> None:
        """Remember the module; nothing is read yet."""
        self.text = text
        self._functions: dict[int, FunctionCode | Refusal] = {}
        self.named_parts: Mapping[int, int] = parts or {}
        """The functions of which names say that some code elsewhere is a part, by where that begins."""
        self.kept_lines = KeptLines()
        """The functions whose decoded instructions are kept."""
        self._unproven_starts: frozenset[int] | None = None
        """What ``_unproven`` returns, once it is known."""
        self._finding = RLock()
        """Held while something is found out about the module: nothing else is waited for meanwhile."""
        self.analyses: Analyses[ModuleView] = Analyses(self, lock=self._finding)
        """The results of analyses of the module."""
        self.layout = Layout(text)
        """Where its functions are."""
        self.entries = EntryPoints(self)
        """What enters them."""

    def forget(self) -> None:
        """Forget all that was found: what refers to it refers back, and bulk work waits long for who collects that."""
        self._functions.clear()
        self.kept_lines, self.analyses = KeptLines(), Analyses(self, lock=self._finding)
        self.layout, self.entries = Layout(self.text), EntryPoints(self)

    # -- functions

    def function_at(self, start: int) -> FunctionCode | Refusal:
        """Return the function that starts at an address."""
        known = self._functions.get(start)
        if known is None:
            with self._finding:
                known = self._functions.get(start)
                if known is None:
                    known = self._functions[start] = self._analyse(start)
        return known

    def functions_at(self, starts: Iterable[int]) -> tuple[FunctionCode, ...] | None:
        """Return the functions that start at some addresses; nothing where one does not."""
        found = [self.function_at(start) for start in starts]
        known = tuple([each for each in found if isinstance(each, FunctionCode)])
        return known if len(known) == len(found) else None

    def _analyse(self, start: int) -> FunctionCode | Refusal:
        checkpoint()
        number = bisect_left(self.layout.starts, start)
        if start in self._unproven:
            detail = "a symbol without a type, which may name data, and nothing that is known to lead here"
            return Refusal(Reason.NOT_CODE, start, detail)
        if number == len(self.layout.starts) or self.layout.starts[number] != start:
            return self._nameless(start) or Refusal(Reason.NOT_CODE, start, "no function starts here")
        area = self.layout.area_of(start)
        if area is None:
            return Refusal(Reason.NOT_CODE, start, "not in executable code")
        end = min(self.layout.ends[number], area.end)
        if end <= start:
            return Refusal(Reason.NOT_CODE, start, "the function has no bytes")
        return FunctionCode(self, start, area.content[start - area.start : end - area.start])

    @property
    def _unproven(self) -> frozenset[int]:
        """The functions of which nothing but a symbol without a type tells, and nothing leads there."""
        if self._unproven_starts is None:
            self._unproven_starts = frozenset()  # while they are looked at, they are functions like any others
            doubtful = self.text.named | self.text.pointed
            starts = doubtful.difference(self.text.unlisted).intersection(self.layout.starts) if doubtful else ()
            if starts:
                from anyprobe.binary.flow.untyped_symbols import unproven_starts

                self._unproven_starts = unproven_starts(self, starts)
                for start in self._unproven_starts:
                    self._functions.pop(start, None)
        return self._unproven_starts

    def _nameless(self, address: int) -> FunctionCode | None:
        """Return the code around an address outside of all functions."""
        from anyprobe.binary.flow.nameless import nameless_code

        return nameless_code(self, address) if self.layout.start_of(address) is None else None

    def containing(self, address: int) -> FunctionCode | None:
        """Return the function that an address lies in."""
        start = self.layout.start_of(address)
        found = self.function_at(start) if start is not None else None
        return found if isinstance(found, FunctionCode) and address < found.end else None

    # -- what enters them

    def add_entry(self, address: int) -> None:
        """Take note of an address that is entered though nothing in the program leads there."""
        with self._finding:
            if self.entries.add(address):
                start = self.layout.start_of(address)
                known = self._functions.get(address if start is None else start)
                if isinstance(known, FunctionCode):
                    known.note_entry()

    def survey(self) -> None:
        """Decide about all branches together; worth it where most functions will be asked about."""
        with self._finding:
            self.entries.survey()
