"""The commands, one module each, so that a module may be called `list` and hide nothing.

In: options that click has parsed. Out: calls of the public API, a report or a JSON document, an exit status.
Must not import at its top what another command does not need: `--help` takes less than 0.2 s.
"""
