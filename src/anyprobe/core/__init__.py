"""The bottom layer: addresses, bytes at addresses, code values, refusals and errors.

In: nothing of anyprobe. Out: values and protocols that all other packages share.
Must not know a process, a file or an instruction.
"""
