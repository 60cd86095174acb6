"""Rich's console, of which nothing but rich's own colours and cursor movements gets to a terminal."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from anyprobe.core.printable import printable


class Terminal(Console):
    """A console that shows control characters of texts by their escapes.

    Reports have escaped them before, so that columns are as wide as what is in them: this is for what they forget.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, "\n"))
