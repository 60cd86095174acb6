"""Optimising a program while it runs: what has run is laid out anew, and kept where that is faster.

In: a session, and functions. Out: functions that run elsewhere, and what was gained. Must not know how code is copied
(``splice.codegen.moved.bodies``) or written.
"""
