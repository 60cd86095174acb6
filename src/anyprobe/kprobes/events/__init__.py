"""The syntax of `kprobe_events`: definitions of events with fetch arguments, and their records.

In: lines of text. Out: handlers as source text, and events that are enabled, shown and removed by name.
Must not name an error otherwise than the kernel does.
"""
