"""The bottom layer: addresses, the memory protocol, refusals and errors. Knows no process, no file, no instruction."""
