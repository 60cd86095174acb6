"""Which records of a session's journals list which splices: what is known of a splice only once it is applied."""

from collections.abc import Iterable, Sequence

from anyprobe.splice.function_changes import EmittedSplice
from anyprobe.splice.journal.records import Journal, Record


class SpliceRecords:
    """The records of the splices that are in the target, or may be in a moment."""

    def __init__(self) -> None:
        """Nothing is listed yet."""
        self._numbers: dict[Journal, dict[EmittedSplice, int]] = {}

    def add(self, journal: Journal, splices: Sequence[EmittedSplice], records: Sequence[Record]) -> None:
        """Have a journal list splices, with one record each."""
        numbers = self._numbers.setdefault(journal, {})
        numbers.update(zip(splices, journal.add(records), strict=True))

    def clear(self, splices: Iterable[EmittedSplice]) -> None:
        """Have the journals list splices no more, those of them that are listed."""
        splices = list(splices)
        for journal, numbers in self._numbers.items():
            listed = [splice for splice in splices if splice in numbers]
            if listed:
                journal.clear([numbers[splice] for splice in listed])
                for splice in listed:
                    del numbers[splice]
