"""The running kernel: bpf(2), perf_event_open(2), tracefs, and what it says of its own functions and types."""
