"""Our own splices in the running kernel: which places, with which patches, and what they have counted.

In: places and handlers.
Out: probes that the driver has written in one stop, and their counts.
Must not write to the kernel except by the driver, which checks.
"""
