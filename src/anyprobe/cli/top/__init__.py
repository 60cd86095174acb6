"""The screen of ``top``: functions as they are called, with keys that sort, choose, disarm and keep.

In: the results of each interval, and keys. Out: what a terminal shows, and archives.
Must not do what the public API cannot do; only ``screen`` may import textual.
"""
