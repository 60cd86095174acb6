"""The running kernel: bpf(2), perf_event_open(2), tracefs, and its functions and types.

In: names, addresses, programs of BPF. Out: descriptors whose closing detaches, and what BTF and kallsyms say.
Must not decide which mechanism a probe takes: `probes.providers.kernel` does.
"""
