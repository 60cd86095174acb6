"""The syntax of ``kprobe_events``: definitions of events with fetch arguments, and the events that come of them."""
