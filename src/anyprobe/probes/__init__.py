"""Sessions and probes: what a user asks of one process, from the spec to the snapshot.

In: specs, handlers, a process. Out: `Probe` objects, refusals, snapshots.
Must not write to the target: `splice` and `target` do.
"""
