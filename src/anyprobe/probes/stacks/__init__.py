"""Stacks and addresses by name: frames gone up in the controller, symbols, and source lines.

In: registers and memory. Out: names and frames. Must not touch the target.
"""
