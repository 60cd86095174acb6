"""The screen itself: a table of functions, below it a heat map of the selected one or who calls it, and keys."""

import io
import signal
import time
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Input, Static

from anyprobe.core.printable import printable
from anyprobe.reports import live
from anyprobe.reports.heatmap import print_heat
from anyprobe.reports.metrics import curve
from anyprobe.reports.quantities import counted
from anyprobe.reports.terminal import Terminal

if TYPE_CHECKING:
    from anyprobe.cli.measurement.plan import Meanwhile
    from anyprobe.cli.top.session import Top
    from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot

LOOKS = 0.05
"""Seconds between two looks at what is due."""
MOST_ROWS = 500
"""Functions that the table has at the most: a filter chooses among more."""
KEYS = "q quit  / filter  c s t m l n sort  Enter callers  a arm  f freeze  w save"


class TopScreen(App[None]):
    """The screen of ``top``, in the terminal's own colours."""

    TITLE = "anyprobe top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #head { height: 1; text-style: bold; }
    #functions { height: 1fr; }
    #heat, #calls { height: 50%; border-top: solid ansi_default; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    #filter.open { display: block; }
    #said { height: 1; text-style: bold; display: none; }
    #keys { height: 1; text-style: dim; }
    DataTable { background: ansi_default; color: ansi_default; scrollbar-size-vertical: 1; overflow-x: hidden; }
    DataTable > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold underline; }
    DataTable > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    DataTable:blur > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: underline; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        ("q", "quit"),
        ("ctrl+c", "interrupt"),
        *((key, f"sort('{order}')") for key, order in zip("cstmln", live.ORDERS, strict=True)),
        ("slash", "filter"),
        ("escape", "leave"),
        ("a", "switch"),
        ("f,space", "freeze"),
        ("w", "save"),
    ]
    BINDINGS = [(key, action, "") for key, action in BINDINGS]

    def __init__(self, top: "Top", meanwhile: "Meanwhile") -> None:
        """Show what ``top`` has, and do the duties of ``meanwhile`` in between."""
        super().__init__(ansi_color=True)  # the terminal's own colours, dark or light
        self.theme = "ansi-dark"
        self.top, self.meanwhile = top, meanwhile
        self.failure: BaseException | None = None
        self.order, self.pattern = "self", ""
        self.frozen: tuple[Snapshot, Snapshot, list[Snapshot]] | None = None
        self.rows: dict[str, FunctionTiming] = {}
        self.ended = False
        self._due: float | None = 0.0
        self._drawn: Snapshot | None = None
        self._widths = (0, 0)
        """The columns of names, as the table has them."""
        self._below = ""
        """The function that is drawn below the table."""

    def compose(self) -> ComposeResult:
        """Make the parts."""
        yield Static(id="head", markup=False)
        yield DataTable[Text](id="functions", cursor_type="row", cell_padding=0, zebra_stripes=False)
        with VerticalScroll(id="heat", can_focus=False):
            yield Static(id="map", markup=False)
        yield DataTable[Text](id="calls", cursor_type="row", cell_padding=0)
        yield Input(id="filter", placeholder="a part of the name, or a glob; module: before it", compact=True)
        yield Static(id="said", markup=False)
        yield Static(KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        """Begin."""
        self.calls.display = False
        self.functions.focus()
        self.set_interval(LOOKS, self.look)
        self.draw()

    @property
    def functions(self) -> "DataTable[Text]":
        """The table of functions."""
        return self.query_one("#functions", DataTable)

    @property
    def calls(self) -> "DataTable[Text]":
        """The table of who calls the selected function, and what it calls."""
        return self.query_one("#calls", DataTable)

    # -- duties

    def look(self) -> None:
        """Do what is due; leave where it is over."""
        try:
            self._look()
        except BaseException as error:  # noqa: BLE001 - it is raised again once the terminal is as it was
            self.failure = error
            self.exit()

    def _look(self) -> None:
        meanwhile = self.meanwhile
        if self.top.terminal is not None and self.top.terminal.is_gone:
            self.exit()
        if self._due is None or time.monotonic() >= self._due:
            self._due = meanwhile.work()
        meanwhile.rest(time.monotonic())
        if not self.ended and not meanwhile.has_targets:
            self.ended = True
            meanwhile.show()
            self.draw()
            self.say("the program has ended: q leaves")
        elif not meanwhile.goes_on and (meanwhile.has_targets or meanwhile.interrupts.requested):
            self.exit()
        if self.top.last is not self._drawn and self.frozen is None:
            self.draw()

    # -- drawing

    @property
    def shown(self) -> "tuple[Snapshot, Snapshot, list[Snapshot]] | None":
        """The last interval, everything so far, and the intervals, as they are or were frozen."""
        top = self.top
        if self.frozen is not None or top.last is None or top.together is None:
            return self.frozen
        if self.ended:  # of all its time: the last interval may be short
            return top.together, top.together, top.series
        return top.last, top.together, top.series

    def draw(self) -> None:
        """Draw everything anew; the selected function stays selected."""
        shown = self.shown
        self._drawn = self.top.last
        head = self.query_one("#head", Static)
        if shown is None:
            head.update("measuring …")
            return
        last, together, _ = shown
        found = live.chosen(last, together, self.order, self.pattern)
        chosen = self.selected
        self.rows = {live.key_of(each): each for each in found[:MOST_ROWS]}
        self._draw_functions(last)
        if chosen is not None and live.key_of(chosen) in self.rows:
            self.functions.move_cursor(row=list(self.rows).index(live.key_of(chosen)), animate=False)
        head.update(self._heading(last, together, len(found)))
        self.draw_selected()

    def _heading(self, last: "Snapshot", together: "Snapshot", found: int) -> str:
        target = together.target
        parts = [f"{printable(target.shown_name)} (pid {target.pid})" if not together.others else
                 counted(1 + len(together.others), "process", "processes")]  # fmt: skip
        seconds = last.interval.seconds if last.interval else last.duration_s
        parts += [f"{seconds:.1f} s of {together.duration_s:.0f}", f"{counted(found, 'function')} by {self.order}"]
        parts += [f"only {self.pattern!r}"] * bool(self.pattern) + ["FROZEN"] * (self.frozen is not None)
        parts += ["ENDED"] * self.ended
        return " · ".join(parts)

    def _draw_functions(self, last: "Snapshot") -> None:
        table, width = self.functions, self.size.width - 2
        module = min(max((len(each.shown_module) for each in self.rows.values()), default=0), live.MODULE)
        module = max(module, len("module"))
        name = max(width - module - 1 - sum(live.COLUMNS.values()), live.NAME)
        has_columns = self._widths == (name, module)
        table.clear(columns=not has_columns)
        if not has_columns:
            self._widths = name, module
            for heading, wide in live.COLUMNS.items():
                table.add_column(Text(heading.rjust(wide - 1)), width=wide)
            table.add_column(Text("function"), width=name + 1)
            table.add_column(Text("module"), width=module)
        seconds = last.interval.seconds if last.interval else last.duration_s
        for key, timing in self.rows.items():
            cells = live.cells_of(timing, seconds, last.clock_step_ns)
            texts = [Text(cell.rjust(wide - 1)) for cell, wide in zip(cells, live.COLUMNS.values(), strict=True)]
            called = printable(live.name_of(timing)) + ("" if live.is_armed(timing) else " (disarmed)")
            texts += [_cut(called, name), _cut(printable(timing.shown_module), module)]
            if not live.is_armed(timing):
                for each in texts:
                    each.stylize("dim")
            table.add_row(*texts, key=key)

    @property
    def selected(self) -> "FunctionTiming | None":
        """The function of the row that the cursor is on."""
        at = self.functions.cursor_row
        return list(self.rows.values())[at] if 0 <= at < len(self.rows) else None

    def draw_selected(self) -> None:
        """Draw what is below the table: of the selected function."""
        selected, shown = self.selected, self.shown
        if selected is None or shown is None:
            self.query_one("#map", Static).update("no function" if shown else "")
            return
        self._below = live.key_of(selected)
        if self.calls.display:
            self._draw_calls(selected, shown[1])
            return
        panel = self.query_one("#heat", VerticalScroll)
        width = self.size.width - 1
        series = live.only(shown[2][-(width - 12) :], selected)
        stream = io.StringIO()
        console = Terminal(file=stream, width=width, force_terminal=True, color_system="standard", highlight=False)
        print_heat(series, console, max(panel.size.height - 5, 4))
        rates = live.per_second(series)
        heat = Text.from_ansi(stream.getvalue().lstrip("\n"))
        line = f"calls/s, at most {max(rates, default=0):,.0f}: {curve(rates, max(rates, default=0), width // 3)}\n"
        self.query_one("#map", Static).update(Text(line) + heat)

    def _draw_calls(self, selected: "FunctionTiming", together: "Snapshot") -> None:
        callers, callees = live.neighbours(together, selected)
        table, step, at = self.calls, together.clock_step_ns, self.calls.cursor_row
        columns = {"calls": 13, "total": 11, "self": 11}
        name = max(self.size.width - sum(columns.values()) - live.MODULE - 2, live.NAME)
        table.clear(columns=True)
        for heading, wide in columns.items():
            table.add_column(Text(heading.rjust(wide - 1)), width=wide)
        table.add_column(Text("since the beginning"), width=name)
        table.add_column(Text("module"), width=live.MODULE)
        rows = [(f"← {each.caller or '(no timed function)'}", each.caller_module, each) for each in callers]
        rows += [(f"→ {each.function}", each.module, each) for each in callees]
        for text, module, calls in rows:
            cells = [
                cell.rjust(wide - 1) for cell, wide in zip(live.call_cells(calls, step), columns.values(), strict=True)
            ]
            table.add_row(*map(Text, cells), _cut(printable(text), name - 1), _cut(printable(module), live.MODULE))
        if not rows:
            table.add_row(*map(Text, ("", "", "", "no timed function calls it, or is called", "")))
        table.move_cursor(row=min(at, max(len(rows) - 1, 0)), animate=False)

    def say(self, text: str) -> None:
        """Show a line above the keys, for some seconds."""
        said = self.query_one("#said", Static)
        said.update(printable(text))
        said.display = True
        self.set_timer(8, lambda: setattr(said, "display", False))

    # -- keys

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Draw what is below the table."""
        selected = self.selected
        if event.data_table is self.functions and selected is not None and live.key_of(selected) != self._below:
            self.draw_selected()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show who calls a function and what it calls; there go to the function of the row."""
        shown, selected = self.shown, self.selected
        if shown is None or selected is None:
            return
        if event.data_table is self.functions:
            self.query_one("#heat").display = False
            self.calls.display = True
            self.draw_selected()
            self.calls.focus()
            return
        callers, callees = live.neighbours(shown[1], selected)
        names = [(each.caller, each.caller_module) for each in callers] + [
            (each.function, each.module) for each in callees
        ]
        if event.cursor_row < len(names):
            self.go_to(*names[event.cursor_row])

    def go_to(self, function: str, module: str) -> None:
        """Select a function by its name, if it is timed."""
        if self.pattern:
            self.pattern = ""
            self.draw()
        for at, each in enumerate(self.rows.values()):
            if function in {each.function, each.label} and each.module == module:
                self.functions.move_cursor(row=at, animate=False)
                self.calls.move_cursor(row=0, animate=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Choose functions as the filter is written."""
        self.pattern = event.value.strip()
        self.draw()

    def on_input_submitted(self) -> None:
        """Go back to the table."""
        self.action_leave()

    def action_filter(self) -> None:
        """Have a filter written."""
        entry = self.query_one("#filter", Input)
        entry.add_class("open")
        entry.focus()

    def action_leave(self) -> None:
        """Go back to the table of functions, and to the heat map."""
        self.query_one("#filter").remove_class("open")
        self.calls.display = False
        self.query_one("#heat").display = True
        self.functions.focus()
        self.draw_selected()

    def action_sort(self, order: str) -> None:
        """Order the functions."""
        self.order = order
        self.draw()

    def action_switch(self) -> None:
        """Disarm the selected function, or arm it again."""
        if self.selected is not None and not self.ended:
            self.say(self.top.switch(self.meanwhile, self.selected))

    def action_freeze(self) -> None:
        """Leave the screen as it is, or follow again; what is measured goes on."""
        shown = self.shown
        self.frozen = None if self.frozen is not None or shown is None else (*shown[:2], list(shown[2]))
        self.draw()

    def action_save(self) -> None:
        """Write an archive."""
        self.say(self.top.save(self.meanwhile))

    def action_interrupt(self) -> None:
        """End as Ctrl-C ends every command."""
        signal.raise_signal(signal.SIGINT)


def _cut(text: str, width: int) -> Text:
    """Return a text, without its middle where it is too long: the ends of names tell them apart."""
    if len(text) > width:
        text = f"{text[: (width - 1) // 2]}…{text[len(text) - (width - 1 - (width - 1) // 2) :]}"
    return Text(text)
