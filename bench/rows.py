"""Rows of the report: a raw figure, what it must reach, and whether it does."""

from dataclasses import dataclass, field


@dataclass
class Row:
    """One line."""

    name: str
    figure: str
    must: str = ""
    holds: bool | None = None
    notes: list[str] = field(default_factory=list)


class Report:
    """Prints rows as they come, so that a run that is cut short has shown something."""

    def __init__(self) -> None:
        """Begin."""
        self.rows: list[Row] = []

    def add(self, name: str, figure: str, must: str = "", holds: bool | None = None, *notes: str) -> None:
        """Print one row."""
        row = Row(name, figure, must, holds, list(notes))
        self.rows.append(row)
        verdict = {True: "yes", False: "NO", None: ""}[holds]
        print(f"{name:<50} {figure:<38} {must:<34} {verdict}", flush=True)
        for note in notes:
            print(f"{'':<50}   {note}", flush=True)

    def skip(self, name: str, reason: object) -> None:
        """Say that a row could not be measured, and why."""
        self.add(name, "skipped", "", None, str(reason))

    def heading(self) -> None:
        """Print the head of the table."""
        print(f"{'row':<50} {'figure':<38} {'must reach':<34} holds")
        print("-" * 130, flush=True)

    def summary(self) -> str:
        """Return how many rows reach what they must."""
        judged = [row for row in self.rows if row.holds is not None]
        return f"{sum(bool(row.holds) for row in judged)} of {len(judged)} rows reach what they must"
