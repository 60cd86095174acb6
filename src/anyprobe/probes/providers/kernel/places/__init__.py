"""What specs mean in the running kernel: functions and their instructions, tracepoints, events, files of programs.

In: text.
Out: sites, with what is known of them.
Must not attach anything.
"""
